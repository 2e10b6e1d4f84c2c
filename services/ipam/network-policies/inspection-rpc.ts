import {
  PolicyTier,
  type ExplainedConnection as ConnectionMessage,
  type ExplainedEnd as EndMessage,
  type ExplainPolicyRequest,
  type ExplainPolicyResponse,
  type GetPolicyStatusRequest,
  type GetPolicyStatusResponse,
  type ListPoliciesRequest,
  type ListPoliciesResponse,
  type PolicyEnd as PolicyEndMessage,
  type PolicyJudgement,
  type PolicyNode as NodeMessage,
  type PolicySummary as SummaryMessage,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { formatAddress } from '@podwire/shared/net/address';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { Handler } from '@podwire/shared/rpc/unary';
import type { Clock } from '@podwire/shared/runtime/clock';

import { readAddress } from '../messages/parts.js';
import { labelFault, subdomainFault } from '../records/names.js';
import { pageOf } from '../records/page.js';
import type {
  ExplainedConnection,
  ExplainedEnd,
  ExplainedJudgement,
  PolicyEnd,
  PolicyInspection,
  PolicyQuestion,
} from './explanation.js';
import type { PolicyNode, PolicySummary } from './status.js';

export function explainHandler(
  policies: PolicyInspection,
  clock: Clock,
): Handler<ExplainPolicyRequest, ExplainPolicyResponse> {
  return (message) => {
    const { isAllowed, connections, source, destination, faultyPolicies } = policies.explain(readQuestion(message));
    const nowMs = clock.nowMs();
    return Promise.resolve({
      allowed: isAllowed,
      connections: connections.map(connectionMessage),
      source: endMessage(source, nowMs),
      destination: endMessage(destination, nowMs),
      faultyPolicies: faultyPolicies.map(summaryMessage),
    });
  };
}

export function statusHandler(
  policies: PolicyInspection,
  clock: Clock,
): Handler<GetPolicyStatusRequest, GetPolicyStatusResponse> {
  return () => {
    const { nodes, networkPoliciesCount, clusterNetworkPoliciesCount, faultyPolicies } = policies.status();
    const nowMs = clock.nowMs();
    return Promise.resolve({
      nodes: nodes.map((node) => nodeMessage(node, nowMs)),
      networkPolicyCount: networkPoliciesCount,
      clusterNetworkPolicyCount: clusterNetworkPoliciesCount,
      faultyPolicies: faultyPolicies.map(summaryMessage),
    });
  };
}

export function listHandler(policies: PolicyInspection): Handler<ListPoliciesRequest, ListPoliciesResponse> {
  return (message) => {
    const { namespace } = message;
    const scope: ListScope = ['network-policies', namespace];
    const page = readChecked('ListPolicies', (checks) => {
      if (namespace !== '') checks.check('namespace', labelFault(namespace));
      return readPage(message, scope, checks);
    });
    const { items, more } = pageOf(policies.list(namespace === '' ? undefined : namespace), page);
    const last = more ? items.at(-1)?.name : undefined;
    return Promise.resolve({ policies: items.map(summaryMessage), nextPageToken: formatPageToken(scope, last) });
  };
}

const MAX_PROTOCOL = 255;
const MAX_PORT = 65_535;

/** IANA's numbers of TCP, UDP and SCTP. */
const WITH_PORTS: readonly number[] = [6, 17, 132];

function readQuestion({ source, destination, protocol, port }: ExplainPolicyRequest): PolicyQuestion {
  return readChecked('ExplainPolicy', (checks) => {
    const isProtocol = protocol >= 1 && protocol <= MAX_PROTOCOL;
    checks.check('protocol', isProtocol ? undefined : `is ${protocol}; it must be from 1 to ${MAX_PROTOCOL}`);
    return {
      source: readEnd('source', source, checks),
      destination: readEnd('destination', destination, checks),
      protocol,
      port: readPort(port, WITH_PORTS.includes(protocol), checks),
    };
  });
}

function readEnd(field: string, message: PolicyEndMessage | undefined, checks: Checks): PolicyEnd {
  const { end } = message ?? {};
  if (end?.$case === 'address') return { address: readAddress(`${field}.address`, end.value, checks) };
  if (end) {
    checks.check(`${field}.pod.namespace`, labelFault(end.value.namespace));
    checks.check(`${field}.pod.name`, subdomainFault(end.value.name));
    return { pod: end.value };
  }
  checks.check(field, 'is missing: set one of pod and address');
  return { pod: { namespace: '', name: '' } };
}

function readPort(port: string, isExpected: boolean, checks: Checks): PolicyQuestion['port'] {
  if (!isExpected) {
    checks.check('port', port === '' ? undefined : 'must be empty: the protocol has no ports');
    return undefined;
  }
  if (/^\d+$/.test(port)) {
    const isPort = Number(port) >= 1 && Number(port) <= MAX_PORT;
    checks.check('port', isPort ? undefined : `is ${port}; it must be from 1 to ${MAX_PORT}`);
    return Number(port);
  }
  checks.check('port', port === '' ? 'is missing: TCP, UDP and SCTP need a number or a name' : undefined);
  return port;
}

function connectionMessage(connection: ExplainedConnection): ConnectionMessage {
  const { source, destination, destinationPort, judgements } = connection;
  const egress = judgements.find(({ direction }) => direction === 'egress');
  const ingress = judgements.find(({ direction }) => direction === 'ingress');
  return {
    sourceAddress: formatAddress(source),
    destinationAddress: formatAddress(destination),
    port: destinationPort ?? 0,
    egress: egress && judgementMessage(egress),
    ingress: ingress && judgementMessage(ingress),
  };
}

const TIER_MESSAGES = {
  admin: PolicyTier.POLICY_TIER_ADMIN,
  policy: PolicyTier.POLICY_TIER_NETWORK_POLICY,
  baseline: PolicyTier.POLICY_TIER_BASELINE,
} as const;

function judgementMessage({ isAllowed, rule, passedBy, isolatedBy, nearMisses }: ExplainedJudgement): PolicyJudgement {
  return {
    allowed: isAllowed,
    policy: rule?.policy ?? '',
    tier: rule ? TIER_MESSAGES[rule.tier] : PolicyTier.POLICY_TIER_UNSPECIFIED,
    ruleIndex: rule?.position ?? 0,
    isolatedBy: [...isolatedBy],
    nearMisses: nearMisses.map(({ policy, position, matchesPeer, matchesPort, missingPortNames }) => ({
      ...{ policy, ruleIndex: position, peerMatches: matchesPeer, portMatches: matchesPort },
      missingPortNames: [...missingPortNames],
    })),
    passedBy: passedBy?.policy ?? '',
    passedByRuleIndex: passedBy?.position ?? 0,
  };
}

function endMessage({ pod, node }: ExplainedEnd, nowMs: number): EndMessage {
  return { pod, node: node && nodeMessage(node, nowMs) };
}

function nodeMessage(node: PolicyNode, nowMs: number): NodeMessage {
  const { name, isFollowing, forMs, sentNumber, acknowledgedNumber, behindForMs, isBehind } = node;
  const before = (ms: number | undefined): Date | undefined => (ms === undefined ? undefined : new Date(nowMs - ms));
  return {
    ...{ name, following: isFollowing, since: before(forMs), behindSince: before(behindForMs), behind: isBehind },
    ...{ sentNumber: BigInt(sentNumber), acknowledgedNumber: BigInt(acknowledgedNumber) },
    ...{ podCount: node.podsCount, restrictedPodCount: node.restrictedPodsCount },
  };
}

function summaryMessage({ name, tier, priority, podsCount, ruleCounts, faults }: PolicySummary): SummaryMessage {
  return {
    ...{ name, tier: TIER_MESSAGES[tier], priority, podCount: podsCount, faults: [...faults] },
    ...{ ingressRuleCount: ruleCounts.ingress, egressRuleCount: ruleCounts.egress },
  };
}
