import {
  FollowPoliciesResponse,
  type PolicyPod,
  type PolicyProfile,
  type PolicySetDigest,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import type { PodName } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';
import type { SetLookup } from '@podwire/shared/network-policy/evaluate';
import type { Address } from '@podwire/shared/net/address';
import type { Direction, PortMember, Profile, SetMember } from '@podwire/shared/network-policy/policy';

import { difference, keyOf, MemberSet, type ElementsDelta } from './members.js';
import {
  addressBytes,
  readUpdate,
  type PodProfiles,
  type PolicyUpdate,
  type SetUpdate,
  type UnknownPods,
} from './messages.js';

/** Filter of a pod's connections in one direction: a profile, or the end of every connection; undefined: none. */
export type Filtering = { readonly profile: string } | 'isolated' | undefined;

/** Changes by a message. */
export interface ViewChange {
  /** Changes of the elements of new, changed and removed sets, by ID. */
  readonly sets: ReadonlyMap<string, ElementsDelta>;
  /** Whether the profiles of pods, or the pods to isolate, may have changed. */
  readonly hasPods: boolean;
}

/** A request has at most 1 MiB, and a digest with its ID 47 bytes. */
const DIGESTS_COUNT_MAX = 20_000;

interface Content {
  readonly profiles: Map<string, Profile>;
  /** The messages of the profiles, for storage. */
  readonly sources: Map<string, PolicyProfile>;
  readonly sets: Map<string, MemberSet>;
  readonly pods: PodIndex;
  unknownPods: UnknownPods | undefined;
}

/**
 * The policies of this node's pods, as podwire-ipam has sent them. A snapshot of several messages replaces the earlier content
 * when it is complete, except for the sets that it does not repeat because the node has them.
 */
export class PolicyView implements SetLookup {
  #content = emptyContent();
  #isCurrent = false;
  /** Whether changes arrive now. */
  isFollowed = false;
  readonly #encoded = new Map<string, { readonly digest: bigint; readonly bytes: Uint8Array }>();
  /** The snapshot that is being received, and the earlier sets that it need not repeat. */
  #staged: { readonly content: Content; readonly kept: Map<string, MemberSet> } | undefined;

  get profiles(): ReadonlyMap<string, Profile> {
    return this.#content.profiles;
  }

  get sets(): ReadonlyMap<string, MemberSet> {
    return this.#content.sets;
  }

  /** Whether a snapshot was received since the process started. */
  get isCurrent(): boolean {
    return this.#isCurrent;
  }

  /** Whether a complete snapshot was ever received. */
  get isKnown(): boolean {
    return this.#content.unknownPods !== undefined;
  }

  /** Whether the cluster has policies. */
  get hasPolicies(): boolean {
    const { all, namespaces } = this.#content.unknownPods ?? {};
    return all === true || (namespaces !== undefined && namespaces.size > 0);
  }

  hasAddress(set: string, address: Address): boolean {
    return this.sets.get(set)?.has(keyOf({ address, sequenceNumber: 0n })) ?? false;
  }

  hasPort(set: string, address: Address, protocol: number, port: number): boolean {
    return this.sets.get(set)?.has(keyOf({ address, sequenceNumber: 0n, protocol, port })) ?? false;
  }

  /** The filters of a pod's connections. Unknown pods are isolated if a policy may concern them. */
  filtering(pod: PodName | undefined): Readonly<Record<Direction, Filtering>> {
    const { pods, unknownPods } = this.#content;
    const known = pod && pods.find(pod);
    if (known) return { ingress: profileOf(known.ingress), egress: profileOf(known.egress) };
    const isOpen = unknownPods !== undefined && !mayConcern(unknownPods, pod);
    return isOpen ? { ingress: undefined, egress: undefined } : { ingress: 'isolated', egress: 'isolated' };
  }

  /**
   * Begins a stream: the next message is the first one of a snapshot.
   * @returns the digests of sets for the stream's request; podwire-ipam sends the rest again
   */
  beginStream(): PolicySetDigest[] {
    const kept = [...this.#content.sets].slice(0, DIGESTS_COUNT_MAX);
    this.#staged = { content: emptyContent(), kept: new Map(kept) };
    return kept.map(([id, { digest }]) => ({ id, digest }));
  }

  /**
   * Takes a message as a whole.
   * @returns what changed; undefined while the snapshot is incomplete
   * @throws Failure INTERNAL for an invalid message, which changes nothing
   */
  apply(message: FollowPoliciesResponse): ViewChange | undefined {
    const update = readUpdate(message);
    const staged = this.#staged;
    if (!staged) return this.#change(update, message);
    const { content, kept } = staged;
    checkSets(update.sets, content.sets);
    for (const set of update.sets) applySet(content.sets, set);
    applyProfiles(content, update, message);
    content.unknownPods = update.unknownPods ?? content.unknownPods;
    for (const id of update.removedIds) kept.delete(id);
    return update.isComplete ? this.#replace(content, kept) : undefined;
  }

  #replace(content: Content, kept: ReadonlyMap<string, MemberSet>): ViewChange {
    const before = this.#content;
    for (const [id, set] of kept) if (!content.sets.has(id)) content.sets.set(id, set);
    content.unknownPods ??= before.unknownPods ?? { all: false, namespaces: new Set() };
    this.#content = content;
    this.#staged = undefined;
    this.#isCurrent = true;
    const ids = new Set([...before.sets.keys(), ...content.sets.keys()]);
    const changed = [...ids].filter((id) => before.sets.get(id) !== content.sets.get(id));
    const sets = new Map(changed.map((id) => [id, difference(before.sets.get(id), content.sets.get(id))]));
    return { sets, hasPods: true };
  }

  #change(update: PolicyUpdate, message: FollowPoliciesResponse): ViewChange {
    const { profiles, sources, sets } = this.#content;
    checkSets(update.sets, sets);
    const deltas = new Map<string, ElementsDelta>();
    for (const set of update.sets) deltas.set(set.id, applySet(sets, set));
    applyProfiles(this.#content, update, message);
    for (const id of update.removedIds) {
      if (sets.has(id)) deltas.set(id, difference(sets.get(id), undefined));
      for (const objects of [sets, profiles, sources]) objects.delete(id);
    }
    this.#content.unknownPods = update.unknownPods ?? this.#content.unknownPods;
    const hasPods =
      update.pods.length + update.removedPods.length + update.profiles.length + update.removedIds.length > 0;
    return { sets: deltas, hasPods: hasPods || update.unknownPods !== undefined };
  }

  /** The content without the sets, to store; {@link restore} reads it. */
  encodePolicies(): Uint8Array {
    const { sources, pods, unknownPods } = this.#content;
    const { all = false, namespaces = [] } = unknownPods ?? {};
    return encoded({
      isComplete: unknownPods !== undefined,
      profiles: [...sources.values()],
      pods: [...pods.all()].map(({ pod, ingress = '', egress = '' }): PolicyPod => ({
        pod,
        ingressProfile: ingress,
        egressProfile: egress,
      })),
      unknownPods: { all, namespaces: [...namespaces] },
    });
  }

  /** The sets, to store. Of thousands of members few change, so each set is encoded once for each content. */
  encodeSets(): Uint8Array {
    const { sets } = this.#content;
    for (const id of this.#encoded.keys()) if (!sets.has(id)) this.#encoded.delete(id);
    const parts = [...sets].map(([id, set]) => {
      const known = this.#encoded.get(id);
      if (known?.digest === set.digest) return known.bytes;
      const bytes = encoded({
        sets: [{ id, isWhole: true, added: [...set.members()].map(memberMessage), removed: [] }],
      });
      this.#encoded.set(id, { digest: set.digest, bytes });
      return bytes;
    });
    // Messages with one repeated field each are together one message.
    return Buffer.concat(parts);
  }

  /**
   * Takes stored content. Call before the first stream.
   * @throws Failure INTERNAL, or an error of the decoder, if it was not written by this release
   */
  restore(policies: Uint8Array, sets: Uint8Array | undefined): void {
    const stored = FollowPoliciesResponse.decode(policies);
    if (!stored.isComplete) return;
    this.beginStream();
    if (sets) this.apply(FollowPoliciesResponse.decode(sets));
    this.apply(stored);
    this.#isCurrent = false;
  }
}

/** The pods by namespace and name; one name may belong to a pod that ends and to its successor. */
class PodIndex {
  readonly #pods = new Map<string, readonly PodProfiles[]>();

  /** A pod whose UID is unknown on either side is found by its name. */
  find({ namespace, name, uid }: PodName): PodProfiles | undefined {
    const named = this.#pods.get(`${namespace}/${name}`) ?? [];
    return named.find(({ pod }) => pod.uid === uid || pod.uid === '' || uid === '');
  }

  set(profiles: PodProfiles): void {
    this.delete(profiles.pod);
    const key = `${profiles.pod.namespace}/${profiles.pod.name}`;
    this.#pods.set(key, [...(this.#pods.get(key) ?? []), profiles]);
  }

  delete({ namespace, name, uid }: PodName): void {
    const key = `${namespace}/${name}`;
    const rest = (this.#pods.get(key) ?? []).filter(({ pod }) => pod.uid !== uid);
    if (rest.length === 0) this.#pods.delete(key);
    else this.#pods.set(key, rest);
  }

  *all(): IterableIterator<PodProfiles> {
    for (const named of this.#pods.values()) yield* named;
  }
}

function emptyContent(): Content {
  return { profiles: new Map(), sources: new Map(), sets: new Map(), pods: new PodIndex(), unknownPods: undefined };
}

function profileOf(id: string | undefined): Filtering {
  return id === undefined ? undefined : { profile: id };
}

/** A container without a pod's name may belong to any namespace. */
function mayConcern({ all, namespaces }: UnknownPods, pod: PodName | undefined): boolean {
  return all || (pod ? namespaces.has(pod.namespace) : namespaces.size > 0);
}

/** @throws Failure INTERNAL for a change of a set that the node does not have */
function checkSets(updates: readonly SetUpdate[], sets: ReadonlyMap<string, MemberSet>): void {
  const missing = updates.find(({ id, isWhole }) => !isWhole && !sets.has(id));
  if (missing)
    throw new Failure('INTERNAL', `podwire-ipam sent a change of set ${missing.id}, which this node does not have`);
}

function applySet(sets: Map<string, MemberSet>, { id, isWhole, added, removed }: SetUpdate): ElementsDelta {
  const before = sets.get(id);
  if (isWhole || !before) {
    const set = new MemberSet();
    for (const member of added) set.add(member);
    sets.set(id, set);
    return difference(before, set);
  }
  const delta = new Map<string, 'added' | 'deleted'>();
  for (const member of added) note(delta, member, before.add(member) && 'added');
  for (const member of removed) note(delta, member, before.remove(member) && 'deleted');
  const keys = (kind: 'added' | 'deleted') => [...delta].filter(([, each]) => each === kind).map(([key]) => key);
  return { added: keys('added'), deleted: keys('deleted') };
}

/** An element that comes and goes again is no change. */
function note(
  delta: Map<string, 'added' | 'deleted'>,
  member: SetMember | PortMember,
  kind: 'added' | 'deleted' | false,
): void {
  if (!kind) return;
  const key = keyOf(member);
  if (delta.has(key)) delta.delete(key);
  else delta.set(key, kind);
}

function applyProfiles(content: Content, update: PolicyUpdate, message: FollowPoliciesResponse): void {
  for (const profile of update.profiles) content.profiles.set(profile.id, profile);
  for (const source of message.profiles) content.sources.set(source.id, source);
  for (const pod of update.removedPods) content.pods.delete(pod);
  for (const pod of update.pods) content.pods.set(pod);
}

function memberMessage(member: SetMember | PortMember) {
  const { address, sequenceNumber } = member;
  const [protocol, port] = 'port' in member ? [member.protocol, member.port] : [0, 0];
  return { address: addressBytes(address), sequenceNumber, protocol, port };
}

function encoded(fields: Partial<FollowPoliciesResponse>): Uint8Array {
  return FollowPoliciesResponse.encode(FollowPoliciesResponse.fromPartial(fields)).finish();
}
