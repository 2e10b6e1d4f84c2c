import { DIRECTIONS, type Profile } from '@podwire/shared/network-policy/policy';

import type { AddressSet, SetUpdate } from './address-sets.js';
import { profileSize, type NodePod, type Profiles, type SharedProfile, type UnknownPods } from './profiles.js';

/** Changes of a node's state, in this order. */
export interface NodeUpdate {
  readonly sets: readonly SetUpdate[];
  readonly profiles: readonly Profile[];
  readonly pods: readonly NodePod[];
  readonly removedPods: readonly NodePod[];
  /** Profiles and sets that no pod of the node uses. */
  readonly removedIds: readonly string[];
  readonly unknownPods: UnknownPods | undefined;
}

interface UsedProfile {
  shared: SharedProfile;
  podsCount: number;
  isSent: boolean;
}

/** A set that the node has, at this version. */
interface SentSet {
  readonly set: AddressSet;
  readonly version: number;
}

export interface FollowerOptions {
  readonly nodeName: string;
  readonly profiles: Profiles;
  /** Digests of the sets that the node has of an earlier stream, by their IDs. */
  readonly known: ReadonlyMap<string, bigint>;
  /** Learns which sets the node has. */
  readonly onUse: (set: AddressSet, isUsed: boolean) => void;
}

/**
 * The state of one node, and its missing changes. It has no queue: it notes which pods and sets have changed, and an update has their
 * present state. So a node that reads slowly gets fewer, larger updates.
 */
export class Follower {
  readonly nodeName: string;
  readonly #profiles: Profiles;
  /** Digests of the sets that the node has of an earlier stream, until the first update. */
  readonly #known: Map<string, bigint>;
  readonly #pods = new Map<string, NodePod>();
  readonly #usedProfiles = new Map<string, UsedProfile>();
  readonly #sets = new Map<string, SentSet>();
  readonly #changedPods: Set<string>;
  readonly #changedSets = new Set<string>();
  readonly #onUse: FollowerOptions['onUse'];
  #unknownPodsChanged = true;

  constructor({ nodeName, profiles, known, onUse }: FollowerOptions) {
    this.nodeName = nodeName;
    this.#profiles = profiles;
    this.#known = new Map(known);
    this.#onUse = onUse;
    this.#changedPods = new Set(profiles.pods.podsOf(nodeName).keys());
  }

  podChanged(key: string): void {
    this.#changedPods.add(key);
  }

  /** @param set - one that the node has */
  setChanged({ id }: AddressSet): void {
    this.#changedSets.add(id);
  }

  unknownPodsChanged(): void {
    this.#unknownPodsChanged = true;
  }

  /** The node has ended its stream. */
  close(): void {
    for (const { set } of this.#sets.values()) this.#onUse(set, false);
  }

  get hasChanges(): boolean {
    return this.#changedPods.size > 0 || this.#changedSets.size > 0 || this.#unknownPodsChanged;
  }

  /** Missing changes of the node; undefined if it is too far behind, and has to begin with a snapshot. */
  collect(): NodeUpdate | undefined {
    const { pods, removedPods } = this.#collectPods();
    const removedIds: string[] = [];
    const profiles = this.#collectProfiles(removedIds);
    const sets = this.#collectSets(removedIds);
    const unknownPods = this.#unknownPodsChanged ? this.#profiles.unknownPods : undefined;
    this.#unknownPodsChanged = false;
    return sets && { sets, profiles, pods, removedPods, removedIds, unknownPods };
  }

  #collectPods(): Pick<NodeUpdate, 'pods' | 'removedPods'> {
    const pods: NodePod[] = [];
    const removedPods: NodePod[] = [];
    for (const key of this.#changedPods) {
      const before = this.#pods.get(key);
      const after = this.#profiles.podOf(this.nodeName, key);
      if (before && before.uid !== after?.uid) removedPods.push(before);
      if (after && !isSamePod(before, after)) pods.push(after);
      if (after) this.#pods.set(key, after);
      else this.#pods.delete(key);
      for (const direction of DIRECTIONS) {
        this.#use(after?.[direction], 1);
        this.#use(before?.[direction], -1);
      }
    }
    this.#changedPods.clear();
    return { pods, removedPods };
  }

  #use(shared: SharedProfile | undefined, podsCount: 1 | -1): void {
    if (!shared) return;
    const { id } = shared.profile;
    const used = this.#usedProfiles.get(id) ?? { shared, podsCount: 0, isSent: false };
    // The sets of an earlier compilation of the same profile change no more.
    if (podsCount > 0) used.shared = shared;
    used.podsCount += podsCount;
    this.#usedProfiles.set(id, used);
  }

  /** @param removedIds - gets the profiles that the node has to drop */
  #collectProfiles(removedIds: string[]): readonly Profile[] {
    const profiles: Profile[] = [];
    for (const [id, used] of this.#usedProfiles) {
      if (used.podsCount === 0) {
        this.#usedProfiles.delete(id);
        if (used.isSent) removedIds.push(id);
      } else if (!used.isSent) profiles.push(used.shared.profile);
      used.isSent = true;
    }
    return profiles;
  }

  /**
   * @param removedIds - gets the sets that the node has to drop
   * @returns undefined if the node is too far behind
   */
  #collectSets(removedIds: string[]): readonly SetUpdate[] | undefined {
    const used = new Set([...this.#usedProfiles.values()].flatMap(({ shared }) => shared.sets));
    const usedIds = new Set([...used].map(({ id }) => id));
    const updates: SetUpdate[] = [];
    for (const set of used) {
      const { id, digest } = set;
      const sent = this.#sets.get(id);
      if (sent?.set === set && !this.#changedSets.has(id)) continue;
      const update = sent ? replacement(sent, set) : this.#known.get(id) === digest ? [] : set.whole();
      if (!update) return undefined;
      updates.push(...update);
      this.#setUsed(id, { set, version: set.track() });
    }
    for (const id of new Set([...this.#sets.keys(), ...this.#known.keys()]))
      if (!usedIds.has(id)) {
        removedIds.push(id);
        this.#setUsed(id, undefined);
      }
    this.#known.clear();
    this.#changedSets.clear();
    return updates;
  }

  #setUsed(id: string, sent: SentSet | undefined): void {
    const before = this.#sets.get(id)?.set;
    if (sent) this.#sets.set(id, sent);
    else this.#sets.delete(id);
    if (before === sent?.set) return;
    if (before) this.#onUse(before, false);
    if (sent) this.#onUse(sent.set, true);
  }
}

/** The update of a set that rules of the node use, and so must not be without a part of it; undefined if there is none. */
function replacement({ set, version }: SentSet, after: AddressSet): readonly SetUpdate[] | undefined {
  // The earlier set may have changed since the node's version.
  if (set !== after && version === set.track() && set.digest === after.digest) return [];
  const change = set === after ? set.since(version) : undefined;
  if (change) return change.added.length + change.removed.length > 0 ? [change] : [];
  const whole = after.whole();
  return whole.length === 1 ? whole : undefined;
}

function isSamePod(a: NodePod | undefined, b: NodePod): boolean {
  return a?.uid === b.uid && a.ingress === b.ingress && a.egress === b.egress;
}

export function isEmpty(update: NodeUpdate): boolean {
  const { sets, profiles, pods, removedPods, removedIds, unknownPods } = update;
  return [sets, profiles, pods, removedPods, removedIds].every((list) => list.length === 0) && !unknownPods;
}

/** Members, rules and IDs of one message, which is then below the limit of gRPC. A larger profile isolates its pods. */
const MESSAGE_ITEMS_COUNT = 8000;

/** An update in parts. No part needs a later one. */
export function splitUpdate(update: NodeUpdate): readonly NodeUpdate[] {
  const sets = inParts(update.sets, ({ added, removed }) => 1 + added.length + removed.length);
  const profiles = inParts(update.profiles, profileSize);
  const removedIds = inParts(update.removedIds, () => 1);
  if ([sets, profiles, removedIds].every(({ length }) => length <= 1)) return [update];
  const empty = { sets: [], profiles: [], pods: [], removedPods: [], removedIds: [], unknownPods: undefined };
  return [
    ...sets.map((part) => ({ ...empty, sets: part })),
    ...profiles.map((part) => ({ ...empty, profiles: part })),
    { ...update, sets: [], profiles: [], removedIds: [] },
    ...removedIds.map((part) => ({ ...empty, removedIds: part })),
  ];
}

function inParts<Item>(items: readonly Item[], sizeOf: (item: Item) => number): readonly (readonly Item[])[] {
  const parts: Item[][] = [];
  let room = 0;
  for (const item of items) {
    const size = sizeOf(item);
    if (size > room || parts.length === 0) {
      parts.push([]);
      room = MESSAGE_ITEMS_COUNT;
    }
    parts.at(-1)?.push(item);
    room -= size;
  }
  return parts;
}
