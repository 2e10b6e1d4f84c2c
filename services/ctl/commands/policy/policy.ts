import {
  NetworkPolicyServiceService,
  PolicyTier,
  type ExplainedConnection,
  type ExplainedEnd,
  type ExplainPolicyResponse,
  type PolicyEnd,
  type PolicyJudgement,
  type PolicyNearMiss,
  type PolicyNode,
  type PolicySummary,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages } from '../../clients/services.js';
import { NAMESPACES, ADDRESS, POD_NAME, text, type Form, type ReadResult } from '../../command-line/forms.js';
import type { Option, Positional, Verb } from '../../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Section, type Table } from '../../output/report.js';
import { age, wordOf } from '../../output/words.js';

/** IANA's numbers. ICMP stands for both of its versions: no port of a policy matches either. */
export const PROTOCOLS: Readonly<Record<string, number>> = { tcp: 6, udp: 17, sctp: 132, icmp: 1 };

const END: Form<PolicyEnd> = {
  placeholder: 'POD|ADDRESS',
  read: (input) => {
    const pod = POD_NAME.read(input);
    if (pod.ok) return { ok: true, value: { end: { $case: 'pod', value: pod.value } } };
    const address = ADDRESS.read(input);
    if (address.ok) return { ok: true, value: { end: { $case: 'address', value: address.value } } };
    return { ok: false, fault: 'is neither a pod with its namespace, such as default/web-0, nor an IP address' };
  },
};

interface Target {
  readonly end: PolicyEnd;
  readonly port: string;
  readonly protocol: string;
}

const TARGET: Form<Target> = {
  placeholder: 'POD|ADDRESS:PORT[/PROTOCOL]',
  read: (input) => {
    const [, before, ending = ''] = /^(.+)\/([^/]+)$/.exec(input) ?? [];
    const hasProtocol = before !== undefined && Object.hasOwn(PROTOCOLS, ending);
    const protocol = hasProtocol ? ending : 'tcp';
    if (protocol === 'icmp') return targetOf(before ?? '', '', protocol);
    const [, end = '', port = ''] = /^(.+):([^:/\]]+)$/.exec(hasProtocol ? before : input) ?? [];
    if (port !== '') return targetOf(end, port, protocol);
    return { ok: false, fault: 'has no port, such as default/web-0:80, [fd65::7]:53/udp or default/web-0/icmp' };
  },
};

function targetOf(endText: string, port: string, protocol: string): ReadResult<Target> {
  const end = END.read(endText.replace(/^\[(.+)\]$/, '$1'));
  return end.ok ? { ok: true, value: { end: end.value, port, protocol } } : end;
}

const SOURCE: Positional<PolicyEnd> = {
  form: END,
  about: 'the side that connects: NAMESPACE/NAME of a pod, or an address',
  presence: 'required',
};
const DESTINATION: Positional<Target> = {
  form: TARGET,
  about: 'the other side with its port, a number or a name of the pod; /udp, /sctp (/tcp). POD/icmp has no port',
  presence: 'required',
};

export const policyExplain: Verb = {
  name: 'policy explain',
  about: 'whether network policies allow a new connection, and which rule decides',
  details:
    'podwire-ipam judges by the policies that it knows, as nodes do, and says whether the nodes of both pods enforce them\n' +
    'already. Name the pod behind a Service, not the Service: nodes judge after its translation. Connections between a pod\n' +
    'and its own node are always allowed. Where no rule matches, each policy that isolates the pod is listed with its rule\n' +
    'that comes closest. Exit code 4: the connection is denied in one family or both, or the node of a pod does not follow\n' +
    'or is behind (more than 10 s without an acknowledgement).',
  positionals: [SOURCE, DESTINATION],
  examples: [
    'policy explain default/bot-0 default/web-0:http',
    'policy explain default/bot-0 10.65.0.7:53/udp',
    'policy explain 192.0.2.9 [fd65::7]:443',
    'policy explain default/bot-0 default/web-0/icmp',
  ],
  run: async (input, { ipam, json, clock }) => {
    const { end: destination, port, protocol } = input.at(DESTINATION);
    const request = { source: input.at(SOURCE), destination, protocol: PROTOCOLS[protocol] ?? 0, port };
    const answer = await ipam.call(NetworkPolicyServiceService.explainPolicy, request);
    return {
      sections: [
        sentence(`network policies: the connection is ${verdictOf(answer)}`),
        judgementTable(answer, protocol),
        ...missNotes(answer, protocol),
        ...endNotes(answer, clock.nowMs()),
        ...faultNotes(answer.faultyPolicies),
      ],
      data: () => json.of(NetworkPolicyServiceService.explainPolicy, answer),
      exitCode: answer.allowed && laggingNodes(answer).length === 0 ? DONE : PROBLEM_FOUND,
    };
  },
};

function verdictOf(answer: ExplainPolicyResponse): string {
  const families = (isAllowed: boolean): readonly string[] => {
    const some = answer.connections.filter((each) => isAllowedConnection(each) === isAllowed);
    return [...new Set(some.map((each) => (each.destinationAddress.includes(':') ? 'IPv6' : 'IPv4')))];
  };
  if (!answer.allowed) {
    const allowed = families(true);
    return allowed.length === 0 ? 'denied' : `allowed for ${allowed.join()} and denied for ${families(false).join()}`;
  }
  const lagging = laggingNodes(answer);
  if (lagging.length === 0) return 'allowed';
  const verb = lagging.length === 1 ? 'does' : 'do';
  return `allowed, but node ${lagging.join(' and node ')} ${verb} not enforce these policies yet`;
}

function isAllowedConnection({ egress, ingress }: ExplainedConnection): boolean {
  return [egress, ingress].every((judgement) => judgement?.allowed !== false);
}

/** Names of the nodes of the pods that may not enforce the policies, where policies matter. */
function laggingNodes({ source, destination }: ExplainPolicyResponse): readonly string[] {
  if (isSamePod(source, destination) || isOwnNode(source, destination)) return [];
  const nodes = [source, destination].flatMap((end) => (end?.pod && end.node ? [end.node] : []));
  return [...new Set(nodes.flatMap(({ name, following, behind }) => (following && !behind ? [] : [name])))];
}

function isSamePod(source: ExplainedEnd | undefined, destination: ExplainedEnd | undefined): boolean {
  return podText(source) !== '' && podText(source) === podText(destination);
}

/** Whether one end is a pod, and the other an address of its node. */
function isOwnNode(source: ExplainedEnd | undefined, destination: ExplainedEnd | undefined): boolean {
  const isOneAPod = (source?.pod === undefined) !== (destination?.pod === undefined);
  return isOneAPod && source?.node !== undefined && source.node.name === destination?.node?.name;
}

function judgementTable({ connections, source, destination }: ExplainPolicyResponse, protocol: string): Table {
  const cells = (end: ExplainedEnd | undefined, judgement: PolicyJudgement | undefined, direction: string) => {
    if (judgement) return [judgement.allowed ? 'allowed' : 'denied', reasonOf(judgement, direction)];
    if (isSamePod(source, destination)) return ['allowed', 'a pod may connect to itself'];
    if (!end?.pod) return ['allowed', end?.node ? `an address of node ${end.node.name}` : 'not an address of a pod'];
    return ['allowed', isOwnNode(source, destination) ? 'its own node' : 'no policy restricts the pod'];
  };
  return {
    kind: 'table',
    columns: ['FROM', 'TO', 'DIRECTION', 'RESULT', 'REASON'],
    rows: connections.flatMap((connection) => {
      const ends = [connection.sourceAddress, targetText(connection, protocol)];
      return [
        [...ends, 'egress', ...cells(source, connection.egress, 'egress')],
        [...ends, 'ingress', ...cells(destination, connection.ingress, 'ingress')],
      ];
    }),
    none: 'connections: none',
  };
}

function targetText({ destinationAddress: address, port }: ExplainedConnection, protocol: string): string {
  if (port === 0) return `${address}/${protocol}`;
  return `${address.includes(':') ? `[${address}]` : address}:${port}/${protocol}`;
}

function reasonOf(judgement: PolicyJudgement, direction: string): string {
  const { allowed, policy, tier, ruleIndex, isolatedBy, passedBy, passedByRuleIndex } = judgement;
  const tierText = tier === PolicyTier.POLICY_TIER_NETWORK_POLICY ? '' : ` (tier ${tierWord(tier)})`;
  const passed = passedBy === '' ? '' : `; passed by ${passedBy}, ${direction}[${passedByRuleIndex}]`;
  if (policy !== '') return `${policy}, ${direction}[${ruleIndex}]${tierText}${passed}`;
  return `${allowed ? '' : `isolated by ${isolatedBy.join(', ')}: `}no rule matches${passed}`;
}

/** A pod may be isolated by many policies. */
const NOTED_MISSES_MAX = 5;

/** Why the policies that isolate the pods do not allow the connection, the closest first. */
function missNotes({ connections }: ExplainPolicyResponse, protocol: string): Section[] {
  const misses = connections.flatMap(({ egress, ingress }) => [
    ...(egress?.nearMisses ?? []).map((miss) => ({ miss, direction: 'egress' })),
    ...(ingress?.nearMisses ?? []).map((miss) => ({ miss, direction: 'ingress' })),
  ]);
  const distance = ({ peerMatches, portMatches }: PolicyNearMiss): number => (peerMatches ? 0 : portMatches ? 1 : 2);
  const texts = misses
    .sort((a, b) => distance(a.miss) - distance(b.miss))
    .map(({ miss, direction }) => missText(miss, direction, protocol));
  return [...new Set(texts)].slice(0, NOTED_MISSES_MAX).map(sentence);
}

function missText(miss: PolicyNearMiss, direction: string, protocol: string): string {
  const { policy, ruleIndex, peerMatches, portMatches, missingPortNames } = miss;
  const rule = `${policy} ${direction}[${ruleIndex}]`;
  if (ruleIndex === undefined) return `${policy} ${direction}: no rule`;
  if (!peerMatches && !portMatches) return `${policy} ${direction}: no rule matches the peer or the port`;
  if (portMatches) return `${rule}: the port matches, the peer does not`;
  const names = missingPortNames.map((name) => `"${name}"`).join(' or ');
  const missing = names === '' ? '' : `: the destination has no ${protocol} port named ${names}`;
  return `${rule}: the peer matches, the port does not${missing}`;
}

const tierWord = (tier: PolicyTier): string => wordOf(PolicyTier[tier], 'POLICY_TIER_');

function podText(end: ExplainedEnd | undefined): string {
  return end?.pod ? `${end.pod.namespace}/${end.pod.name}` : '';
}

/** Whether the nodes of the pods enforce the judged policies, and a hint for an address that may be a Service's. */
function endNotes({ connections, source, destination }: ExplainPolicyResponse, nowMs: number): Section[] {
  const notes = [source, destination].flatMap((end) => {
    if (!end?.pod) return [];
    const { node } = end;
    const state = node ? `node ${node.name} ${nodeText(node, nowMs)}` : 'not scheduled yet';
    return [sentence(`${podText(end)}: ${state}`)];
  });
  if (destination?.pod || destination?.node) return notes;
  const address = connections[0]?.destinationAddress;
  return [sentence(`${address} is no address of a pod: if it is a Service's, name a pod behind it`), ...notes];
}

function nodeText(node: PolicyNode, nowMs: number): string {
  const { following, since, behindSince, sentNumber, acknowledgedNumber } = node;
  if (!following) {
    const time = since ? ` for ${age(since, nowMs)}` : '';
    return `has not followed this podwire-ipam${time}; it may enforce earlier policies, or none`;
  }
  if (!behindSince) return 'enforces these policies';
  const messages = formatCount(Number(sentNumber - acknowledgedNumber), 'message');
  return `is ${messages} behind for ${age(behindSince, nowMs)}; it may enforce earlier policies`;
}

function faultNotes(policies: readonly PolicySummary[]): Section[] {
  return policies.flatMap(({ name, faults }) => faults.map((fault) => sentence(`${name}: ${fault}`)));
}

const NAMESPACE: Option<string> = {
  ...{ name: '--namespace', short: '-n', form: text('NAME', NAMESPACES) },
  about: 'only NetworkPolicies of this namespace (all policies)',
};

export const policyList: Verb = {
  name: 'policy list',
  about: 'the network policies with the pods that they select, and their invalid parts',
  details:
    'PODS: pods that the policy selects. INGRESS and EGRESS: number of rules, also invalid ones; "-" where the policy does\n' +
    'not concern the direction. A NetworkPolicy with 0 rules denies everything. "get policies" lists request policies.',
  options: [NAMESPACE],
  examples: ['policy list', 'policy list -n default'],
  run: async (input, { ipam, json }) => {
    const namespace = input.get(NAMESPACE) ?? '';
    const pages = await allPages((page) => ipam.call(NetworkPolicyServiceService.listPolicies, { ...page, namespace }));
    const policies = pages.flatMap((page) => page.policies);
    return {
      sections: [policyTable(policies), ...faultNotes(policies)],
      data: () => json.of(NetworkPolicyServiceService.listPolicies, { policies, nextPageToken: '' }),
    };
  },
};

function policyTable(policies: readonly PolicySummary[]): Table {
  const number = (count: number | undefined): string => (count === undefined ? '' : String(count));
  return {
    kind: 'table',
    columns: ['POLICY', 'TIER', ...['PRIORITY', 'PODS', 'INGRESS', 'EGRESS', 'FAULTS'].map((right) => ({ right }))],
    rows: policies.map(({ name, tier, priority, podCount, ingressRuleCount, egressRuleCount, faults }) => [
      ...[name, tierWord(tier), tier === PolicyTier.POLICY_TIER_NETWORK_POLICY ? '' : number(priority)],
      ...[number(podCount), number(ingressRuleCount), number(egressRuleCount), number(faults.length)],
    ]),
    none: 'network policies: none',
  };
}

export const policyStatus: Verb = {
  name: 'policy status',
  about: 'whether nodes enforce the network policies, and which policies have invalid parts',
  details:
    'Lists nodes that follow, and nodes with pods. A node is behind after 10 s without an acknowledgement. MESSAGES:\n' +
    'acknowledged of sent. PODS: pods with addresses of their own; RESTRICTED: pods of these that a policy restricts. Of\n' +
    'several podwire-ipam one serves policies, and each other one names it. Exit code 4: a node does not follow or is\n' +
    'behind, or a policy has invalid parts.',
  examples: ['policy status', 'policy status -o json'],
  run: async (_, { ipam, json, clock }) => {
    const answer = await ipam.call(NetworkPolicyServiceService.getPolicyStatus, {});
    const { nodes, networkPolicyCount, clusterNetworkPolicyCount, faultyPolicies } = answer;
    const isHealthy = faultyPolicies.length === 0 && nodes.every(({ following, behind }) => following && !behind);
    const counts = [
      formatCount(networkPolicyCount, 'NetworkPolicy', 'NetworkPolicies'),
      clusterNetworkPolicyCount === undefined
        ? 'ClusterNetworkPolicy is not installed'
        : formatCount(clusterNetworkPolicyCount, 'ClusterNetworkPolicy', 'ClusterNetworkPolicies'),
    ];
    return {
      sections: [nodeTable(nodes, clock.nowMs()), sentence(counts.join(', ')), ...faultNotes(faultyPolicies)],
      data: () => json.of(NetworkPolicyServiceService.getPolicyStatus, answer),
      exitCode: isHealthy ? DONE : PROBLEM_FOUND,
    };
  },
};

function nodeTable(nodes: readonly PolicyNode[], nowMs: number): Table {
  const stateOf = ({ following, behind }: PolicyNode): string =>
    following ? (behind ? 'behind' : 'following') : 'not following';
  return {
    kind: 'table',
    columns: ['NODE', 'STATE', ...['SINCE', 'MESSAGES', 'BEHIND', 'PODS', 'RESTRICTED'].map((right) => ({ right }))],
    rows: nodes.map((node) => [
      ...[node.name, stateOf(node), age(node.since, nowMs), `${node.acknowledgedNumber}/${node.sentNumber}`],
      ...[age(node.behindSince, nowMs), String(node.podCount), String(node.restrictedPodCount)],
    ]),
    none: 'nodes: none',
  };
}
