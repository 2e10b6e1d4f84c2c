import {
  PolicyAction,
  PolicyDirection,
  type FollowPoliciesResponse,
  type PolicyProfile,
  type PolicyRule as RuleMessage,
  type PolicySet,
  type PolicySetMember,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import type { Address } from '@podwire/shared/net/address';
import { memberHash, type PolicyRule, type PortMember, type Profile } from '@podwire/shared/network-policy/policy';

import { memberText, type KnownContent, type KnownState } from './compiled.js';

const ACTIONS: Partial<Record<PolicyAction, PolicyRule['action']>> = {
  [PolicyAction.POLICY_ACTION_ACCEPT]: 'accept',
  [PolicyAction.POLICY_ACTION_DENY]: 'deny',
  [PolicyAction.POLICY_ACTION_PASS]: 'pass',
};

/** The state of a node, from the messages of its stream. */
export class NodeState implements KnownState {
  readonly #addressesOf: (pod: string) => readonly string[];
  /** Members of each set, by their texts with the sequence number. */
  readonly sets = new Map<string, Map<string, PortMember>>();
  readonly profiles = new Map<string, Profile>();
  /** Profiles of each pod: `<namespace>/<name> <uid>`. */
  readonly pods = new Map<string, readonly [ingress: string, egress: string]>();
  unknownPods = { all: false, namespaces: Array<string>() };
  isComplete = false;
  number = 0;

  /** @param addressesOf - as the node assigned them, by `<namespace>/<name>` */
  constructor(addressesOf: (pod: string) => readonly string[]) {
    this.#addressesOf = addressesOf;
  }

  /** The sets that the next stream needs not send. */
  digests() {
    return [...this.sets].map(([id, members]) => {
      let digest = 0n;
      for (const member of members.values())
        digest += memberHash(
          member.port === 0 ? { address: member.address, sequenceNumber: member.sequenceNumber } : member,
        );
      return { id, digest: BigInt.asUintN(64, digest) };
    });
  }

  /** A new stream begins: its snapshot names every pod and profile. */
  begin(): void {
    this.pods.clear();
    this.profiles.clear();
    this.isComplete = false;
    this.number = 0;
  }

  apply(message: FollowPoliciesResponse): void {
    if (message.number !== BigInt(this.number + 1)) throw new Error(`message ${message.number} after ${this.number}`);
    this.number++;
    this.isComplete ||= message.isComplete;
    message.sets.forEach((set) => this.#applySet(set));
    for (const profile of message.profiles) {
      if (this.profiles.has(profile.id)) throw new Error(`profile ${profile.id} is known`);
      this.profiles.set(profile.id, profileOf(profile));
    }
    for (const { namespace, name, uid } of message.removedPods)
      if (!this.pods.delete(`${namespace}/${name} ${uid}`)) throw new Error(`pod ${namespace}/${name} is not known`);
    for (const { pod, ingressProfile, egressProfile } of message.pods)
      this.pods.set(`${pod?.namespace}/${pod?.name} ${pod?.uid}`, [ingressProfile, egressProfile]);
    for (const id of message.removedIds)
      if (!this.profiles.delete(id) && !this.sets.delete(id)) throw new Error(`${id} is not known`);
    if (message.unknownPods) this.unknownPods = message.unknownPods;
    this.#requireWhole();
  }

  podsAt(address: string) {
    return [...this.pods]
      .filter(([pod]) => this.#addressesOf(pod.split(' ')[0] ?? '').includes(address))
      .map(([, [ingress, egress]]) => ({ ingress: this.profiles.get(ingress), egress: this.profiles.get(egress) }));
  }

  members(id: string): ReadonlySet<string> {
    const members = [...(this.sets.get(id)?.values() ?? [])];
    return new Set(members.map((member) => memberText(member, member.protocol, member.port)));
  }

  describe(): KnownContent {
    const sets = this.digests().map(
      ({ id, digest }) => [id, { digest, members: [...this.members(id)].sort() }] as const,
    );
    return { pods: Object.fromEntries(this.pods), sets: Object.fromEntries(sets), unknownPods: this.unknownPods };
  }

  #applySet({ id, isWhole, added, removed }: PolicySet): void {
    const members = (isWhole ? undefined : this.sets.get(id)) ?? new Map<string, PortMember>();
    for (const member of added) members.set(keyOf(memberOf(member)), memberOf(member));
    for (const member of removed) members.delete(keyOf(memberOf(member)));
    this.sets.set(id, members);
  }

  /** Every profile of a pod, and every set of a profile, is known: the kernel refuses rules of unknown sets. */
  #requireWhole(): void {
    for (const id of [...this.pods.values()].flat())
      if (id !== '' && !this.profiles.has(id)) throw new Error(`profile ${id} is not known`);
    for (const { admin, rules, baseline } of this.profiles.values())
      for (const { peers, ports } of [...admin, ...rules, ...baseline])
        for (const id of [...(peers?.sets ?? []), ...(ports?.sets ?? [])])
          if (!this.sets.has(id)) throw new Error(`set ${id} is not known`);
  }
}

function keyOf({ address, sequenceNumber, protocol, port }: PortMember): string {
  return `${memberText({ address })} ${sequenceNumber} ${protocol} ${port}`;
}

function memberOf({ address, ...rest }: PolicySetMember): PortMember {
  return { address: addressOf(address), ...rest };
}

function addressOf(bytes: Buffer): Address {
  return { family: bytes.length === 4 ? 4 : 6, value: BigInt(`0x${bytes.toString('hex')}`) };
}

function profileOf({ id, direction, admin, isolatedBy, rules, baseline }: PolicyProfile): Profile {
  return {
    ...{ id, direction: direction === PolicyDirection.POLICY_DIRECTION_INGRESS ? 'ingress' : 'egress', isolatedBy },
    ...{ admin: admin.map(ruleOf), rules: rules.map(ruleOf), baseline: baseline.map(ruleOf) },
  };
}

function ruleOf({ policy, action, peers, ports }: RuleMessage): PolicyRule {
  const known = ACTIONS[action];
  if (!known) throw new Error(`unknown action ${action}`);
  return {
    policy,
    action: known,
    peers: peers && {
      sets: peers.sets,
      networks: peers.networks.map(({ first, last }) => ({ first: addressOf(first), last: addressOf(last) })),
    },
    ports,
  };
}
