import {
  FollowPoliciesResponse,
  NetworkPolicyServiceService,
  PolicyAction,
  PolicyDirection,
  type AnnouncePodRequest,
  type AnnouncePodResponse,
  type FollowPoliciesRequest,
  type PolicyPod as PodMessage,
  type PolicyPodName,
  type PolicyProfile as ProfileMessage,
  type PolicyRule as RuleMessage,
  type PolicySetMember,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { familyBits, type Address } from '@podwire/shared/net/address';
import type { PolicyRule, Profile } from '@podwire/shared/network-policy/policy';
import { readChecked } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { preparedMethod, type DuplexHandler, type Streaming } from '@podwire/shared/rpc/streaming';
import type { Handler, Unary } from '@podwire/shared/rpc/unary';
import type { Clock } from '@podwire/shared/runtime/clock';

import { readName } from '../leases/session-rpc.js';
import { labelFault, subdomainFault } from '../records/names.js';
import type { Member, SetUpdate } from './address-sets.js';
import type { PolicyInspection } from './explanation.js';
import { explainHandler, listHandler, statusHandler } from './inspection-rpc.js';
import type { FollowRequest, PolicyDistributor, PolicyMessage } from './network-policies-operations.js';
import type { Announcement } from './pod-addresses.js';
import type { NodePod, UnknownPods } from './profiles.js';

/** The network policies that podwire-ipam serves to nodes and operators. */
export interface NetworkPolicyServer {
  readonly policies: PolicyDistributor & PolicyInspection;
  readonly clock: Clock;
}

export function networkPolicyService(
  { policies, clock }: NetworkPolicyServer,
  unary: Unary,
  streaming: Streaming,
): RpcService {
  const method = preparedMethod(NetworkPolicyServiceService.followPolicies);
  return {
    name: 'podwire.ipam.v1.NetworkPolicyService',
    definition: { ...NetworkPolicyServiceService, followPolicies: method },
    implementation: {
      followPolicies: streaming.duplex(method, followHandler(policies)),
      announcePod: unary(NetworkPolicyServiceService.announcePod, announceHandler(policies)),
      explainPolicy: unary(NetworkPolicyServiceService.explainPolicy, explainHandler(policies, clock)),
      getPolicyStatus: unary(NetworkPolicyServiceService.getPolicyStatus, statusHandler(policies, clock)),
      listPolicies: unary(NetworkPolicyServiceService.listPolicies, listHandler(policies)),
    },
  };
}

function followHandler(policies: PolicyDistributor): DuplexHandler<FollowPoliciesRequest, Uint8Array> {
  return async function* (message, { signal }, later) {
    const acknowledged: FollowRequest['acknowledged'] = (listener) =>
      later(({ acknowledgedNumber }) => listener(Number(acknowledgedNumber)));
    const request = { ...readFollowRequest(message), acknowledged };
    for await (const each of policies.follow(request, signal)) yield encodeMessage(each);
  };
}

function announceHandler(policies: PolicyDistributor): Handler<AnnouncePodRequest, AnnouncePodResponse> {
  return async (message, { signal }) => ({ nodes: await policies.announce(readAnnouncement(message), signal) });
}

const ADDRESSES_COUNT_MAX = 2;
const UID_LENGTH_MAX = 128;

function readAnnouncement({ nodeName, pod, addresses }: AnnouncePodRequest): Announcement {
  return readChecked('AnnouncePod', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    const { namespace = '', name = '', uid = '' } = pod ?? {};
    checks.check('pod.namespace', labelFault(namespace));
    checks.check('pod.name', subdomainFault(name));
    if (uid.length > UID_LENGTH_MAX) checks.check('pod.uid', `must have at most ${UID_LENGTH_MAX} characters`);
    if (addresses.length === 0 || addresses.length > ADDRESSES_COUNT_MAX)
      checks.check('addresses', 'must be one, or one of each family');
    const read = addresses.map((each, index) => readName(`addresses[${index}]`, each, checks));
    return { nodeName, pod: { namespace, name, uid }, addresses: read };
  });
}

function readFollowRequest({ nodeName, sets }: FollowPoliciesRequest): Pick<FollowRequest, 'nodeName' | 'sets'> {
  return readChecked('FollowPolicies', (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    return { nodeName, sets: new Map(sets.map(({ id, digest }) => [id, digest])) };
  });
}

/** A message as bytes. Concatenated protobuf messages form one message, so a part that many nodes need is encoded once. */
export function encodeMessage({ number, isComplete, update }: PolicyMessage): Uint8Array {
  const { sets, profiles, pods, removedPods, removedIds, unknownPods } = update;
  const rest = FollowPoliciesResponse.encode({
    ...{ number: BigInt(number), isComplete, sets: [], removedIds: [...removedIds] },
    profiles: profiles.map(profileMessage),
    pods: pods.map(podMessage),
    removedPods: removedPods.map(podName),
    unknownPods: undefined,
  });
  const unknown = unknownPods ? [encodedUnknownPods(unknownPods)] : [];
  return Buffer.concat([...sets.map(encodedSet), ...unknown, rest.finish()]);
}

/** Encodes each part of messages once: many nodes need the same. */
function encodedOnce<Part extends object>(
  fieldsOf: (part: Part) => Partial<FollowPoliciesResponse>,
): (part: Part) => Uint8Array {
  const encoded = new WeakMap<Part, Uint8Array>();
  return (part) => {
    const known = encoded.get(part);
    if (known) return known;
    const bytes = FollowPoliciesResponse.encode(FollowPoliciesResponse.fromPartial(fieldsOf(part))).finish();
    encoded.set(part, bytes);
    return bytes;
  };
}

const encodedSet = encodedOnce(({ id, isWhole, added, removed }: SetUpdate) => ({
  sets: [{ id, isWhole, added: added.map(memberMessage), removed: removed.map(memberMessage) }],
}));

const encodedUnknownPods = encodedOnce(({ all, namespaces }: UnknownPods) => ({
  unknownPods: { all, namespaces: [...namespaces] },
}));

function memberMessage({ value }: Member): PolicySetMember {
  const { address, sequenceNumber } = value;
  const [protocol, port] = 'port' in value ? [value.protocol, value.port] : [0, 0];
  return { address: bytesOf(address), sequenceNumber, protocol, port };
}

const DIRECTION_MESSAGES = {
  ingress: PolicyDirection.POLICY_DIRECTION_INGRESS,
  egress: PolicyDirection.POLICY_DIRECTION_EGRESS,
} as const;

const ACTION_MESSAGES = {
  accept: PolicyAction.POLICY_ACTION_ACCEPT,
  deny: PolicyAction.POLICY_ACTION_DENY,
  pass: PolicyAction.POLICY_ACTION_PASS,
} as const;

function profileMessage({ id, direction, admin, isolatedBy, rules, baseline }: Profile): ProfileMessage {
  return {
    ...{ id, direction: DIRECTION_MESSAGES[direction], isolatedBy: [...isolatedBy] },
    ...{ admin: admin.map(ruleMessage), rules: rules.map(ruleMessage), baseline: baseline.map(ruleMessage) },
  };
}

function ruleMessage({ policy, action, peers, ports }: PolicyRule): RuleMessage {
  return {
    policy,
    action: ACTION_MESSAGES[action],
    peers: peers && {
      sets: [...peers.sets],
      networks: peers.networks.map(({ first, last }) => ({ first: bytesOf(first), last: bytesOf(last) })),
    },
    ports: ports && { ranges: [...ports.ranges], sets: [...ports.sets] },
  };
}

function podMessage(pod: NodePod): PodMessage {
  const { ingress, egress } = pod;
  return {
    pod: podName(pod),
    ingressProfile: ingress?.profile.id ?? '',
    egressProfile: egress?.profile.id ?? '',
  };
}

function podName({ namespace, name, uid }: NodePod): PolicyPodName {
  return { namespace, name, uid };
}

/** In network byte order. */
function bytesOf({ family, value }: Address): Buffer {
  const digits = familyBits(family) / 4;
  return Buffer.from(value.toString(16).padStart(digits, '0'), 'hex');
}
