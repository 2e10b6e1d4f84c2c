import {
  PolicyAction,
  PolicyDirection,
  type FollowPoliciesResponse,
  type PolicyPod,
  type PolicyPodName,
  type PolicyProfile,
  type PolicyRule as RuleMessage,
  type PolicySetMember,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import type { PodName } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';
import { fromBytes, type Address } from '@podwire/shared/net/address';
import type {
  PolicyRule,
  PortMember,
  PortRange,
  Profile,
  RuleAction,
  SetMember,
} from '@podwire/shared/network-policy/policy';
import type { AddressRange } from '@podwire/shared/network-policy/ranges';

import { hasPorts } from './rules.js';

/** A pod of this node with the IDs of its profiles; undefined: no policy restricts that direction. */
export interface PodProfiles {
  readonly pod: PodName;
  readonly ingress: string | undefined;
  readonly egress: string | undefined;
}

/** Which pods are isolated until their profiles are known. */
export interface UnknownPods {
  readonly all: boolean;
  readonly namespaces: ReadonlySet<string>;
}

/** A new or changed set. */
export interface SetUpdate {
  readonly id: string;
  /** Whether `added` is the whole set. */
  readonly isWhole: boolean;
  readonly added: readonly (SetMember | PortMember)[];
  readonly removed: readonly (SetMember | PortMember)[];
}

/** A message of podwire-ipam about policies, checked. */
export interface PolicyUpdate {
  readonly isComplete: boolean;
  readonly sets: readonly SetUpdate[];
  readonly profiles: readonly Profile[];
  readonly pods: readonly PodProfiles[];
  readonly removedPods: readonly PodName[];
  readonly removedIds: readonly string[];
  /** Undefined: unchanged. */
  readonly unknownPods: UnknownPods | undefined;
}

/** IDs become names in nftables. */
const ID = /^[\w-]{1,100}$/;
const SET_ID = /^[ap]-[\w-]{1,100}$/;

/** TCP, UDP, SCTP. */
const PROTOCOLS: readonly number[] = [6, 17, 132];

const PORT_MAX = 65_535;

const ACTIONS: ReadonlyMap<PolicyAction, RuleAction> = new Map([
  [PolicyAction.POLICY_ACTION_ACCEPT, 'accept'],
  [PolicyAction.POLICY_ACTION_DENY, 'deny'],
  [PolicyAction.POLICY_ACTION_PASS, 'pass'],
]);

const DIRECTIONS = new Map([
  [PolicyDirection.POLICY_DIRECTION_INGRESS, 'ingress' as const],
  [PolicyDirection.POLICY_DIRECTION_EGRESS, 'egress' as const],
]);

/** @throws Failure INTERNAL for a message that no podwire-ipam sends: nothing of it may be used */
export function readUpdate(message: FollowPoliciesResponse): PolicyUpdate {
  const { isComplete, removedIds, unknownPods } = message;
  return {
    isComplete,
    sets: message.sets.map(({ id, isWhole, added, removed }) => {
      checkSetId(id);
      const read = (member: PolicySetMember) => readMember(member, id);
      return { id, isWhole, added: added.map(read), removed: removed.map(read) };
    }),
    profiles: message.profiles.map(readProfile),
    pods: message.pods.map(readPod),
    removedPods: message.removedPods.map(readPodName),
    removedIds,
    unknownPods: unknownPods && { all: unknownPods.all, namespaces: new Set(unknownPods.namespaces) },
  };
}

function readMember({ address, sequenceNumber, protocol, port }: PolicySetMember, set: string): SetMember | PortMember {
  const member = { address: readAddress(address), sequenceNumber };
  return hasPorts(set) ? { ...member, protocol: checkProtocol(protocol), port: checkPort(port) } : member;
}

function readAddress(bytes: Buffer): Address {
  if (bytes.length !== 4 && bytes.length !== 16) throw invalid(`an address has ${bytes.length} bytes`);
  return fromBytes(bytes);
}

/** The inverse of reading an address. */
export function addressBytes({ family, value }: Address): Buffer {
  const digits = value.toString(16).padStart(family === 4 ? 8 : 32, '0');
  return Buffer.from(digits, 'hex');
}

function readPod({ pod, ingressProfile, egressProfile }: PolicyPod): PodProfiles {
  const id = (text: string) => (text === '' ? undefined : checkId(text));
  return { pod: readPodName(pod), ingress: id(ingressProfile), egress: id(egressProfile) };
}

function readPodName(pod: PolicyPodName | undefined): PodName {
  if (!pod || pod.namespace === '' || pod.name === '') throw invalid('a pod has no name');
  return { namespace: pod.namespace, name: pod.name, uid: pod.uid };
}

function readProfile({ id, direction, admin, isolatedBy, rules, baseline }: PolicyProfile): Profile {
  const known = DIRECTIONS.get(direction);
  if (!known) throw invalid(`profile ${id} has the direction ${direction}`);
  const profile = {
    id: checkId(id),
    direction: known,
    admin: admin.map(readRule),
    isolatedBy,
    rules: rules.map(readRule),
    baseline: baseline.map(readRule),
  };
  if (profile.rules.some(({ action }) => action !== 'accept')) throw invalid(`a NetworkPolicy of profile ${id} denies`);
  return profile;
}

function readRule({ policy, action, peers, ports }: RuleMessage): PolicyRule {
  const known = ACTIONS.get(action);
  if (!known) throw invalid(`a rule of ${policy} has the action ${action}`);
  return {
    policy,
    action: known,
    peers: peers && {
      sets: peers.sets.map((id) => checkSetId(id, false)),
      networks: peers.networks.map(({ first, last }) =>
        readRange({ first: readAddress(first), last: readAddress(last) }),
      ),
    },
    ports: ports && {
      ranges: ports.ranges.map(readPortRange),
      sets: ports.sets.map((id) => checkSetId(id, true)),
    },
  };
}

function readRange(range: AddressRange): AddressRange {
  const { first, last } = range;
  if (first.family !== last.family || first.value > last.value) throw invalid('a range of addresses is reversed');
  return range;
}

function readPortRange({ protocol, first, last }: PortRange): PortRange {
  if (first > last) throw invalid(`ports ${first} to ${last} are reversed`);
  return { protocol: checkProtocol(protocol), first, last: checkPort(last) };
}

function checkProtocol(protocol: number): number {
  if (!PROTOCOLS.includes(protocol)) throw invalid(`protocol ${protocol} has no ports`);
  return protocol;
}

function checkPort(port: number): number {
  if (port > PORT_MAX) throw invalid(`port ${port} is above ${PORT_MAX}`);
  return port;
}

function checkId(id: string): string {
  if (!ID.test(id)) throw invalid(`${JSON.stringify(id)} is no ID of a profile`);
  return id;
}

/** @param withPorts - undefined: either kind */
function checkSetId(id: string, withPorts?: boolean): string {
  const isOfKind = withPorts === undefined || hasPorts(id) === withPorts;
  if (!SET_ID.test(id) || !isOfKind) throw invalid(`${JSON.stringify(id)} is no ID of such a set`);
  return id;
}

function invalid(reason: string): Failure {
  return new Failure(
    'INTERNAL',
    `podwire-ipam sent policies that this release cannot read: ${reason}; upgrade podwire-node`,
  );
}
