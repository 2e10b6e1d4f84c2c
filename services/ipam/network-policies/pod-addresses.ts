import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix, ordinalOf, prefixContains } from '@podwire/shared/net/prefix';
import type { SetMember } from '@podwire/shared/network-policy/policy';

import type { AllocationAttributes } from '../records/attributes.js';
import { attributesAt, isHeld, rangesAround, type Block } from '../records/block.js';
import { poolOf, type Pool } from '../records/pool.js';
import { formatPodName, type Pod, type PodName } from './pods.js';

/** An address that IPAM has bound to a pod. */
interface Allocation extends SetMember {
  readonly pod: PodName;
  readonly nodeName: string;
}

/** A pod's addresses, as its node announces them before the datastore has them. */
export interface Announcement {
  readonly nodeName: string;
  readonly pod: PodName & { readonly uid: string };
  readonly addresses: readonly SetMember[];
}

/** One address of an {@link Announcement}. */
type Announced = SetMember & Omit<Announcement, 'addresses'>;

/** Announced addresses of one node. Addresses that the datastore does not confirm are mistakes; the oldest are dropped. */
const ANNOUNCED_COUNT_MAX = 2048;

export interface PodAddressesOptions {
  /** Receives pods whose addresses may have changed. */
  readonly changed: (pod: PodName) => void;
  /** The pools have changed: addresses that pods report may count now, or no longer. */
  readonly poolsChanged: () => void;
}

const NONE: readonly Allocation[] = [];

/**
 * The addresses of pods: what IPAM has bound to them, what their nodes have announced, and addresses outside of all pools as the
 * kubelet reports them.
 *
 * An announcement counts while the node holds the address in the datastore: as a lease, or for an earlier pod. It ends when the
 * datastore names the next pod, or takes the address from the node.
 */
export class PodAddresses {
  readonly #options: PodAddressesOptions;
  /** Blocks, with their allocations, by the key of the record. */
  readonly #blocks = new Map<string, { readonly block: Block; readonly allocations: readonly Allocation[] }>();
  readonly #prefixes = new Map<string, Block>();
  readonly #byPod = new Map<string, readonly Allocation[]>();
  /** Announced addresses by their text, oldest first. */
  readonly #announced = new Map<string, Announced>();
  readonly #announcedByPod = new Map<string, Set<Announced>>();
  readonly #countsByNode = new Map<string, number>();
  #pools: readonly Pool[] = [];

  constructor(options: PodAddressesOptions) {
    this.#options = options;
  }

  /** Only allocations of the pod's own node count: a node that allocates chooses the name of the pod. */
  of(pod: Pod): readonly SetMember[] {
    const { nodeName, reportedAddresses } = pod;
    const key = formatPodName(pod);
    const bound = (this.#byPod.get(key) ?? NONE).filter((each) => each.nodeName === nodeName && !this.#isGiven(each));
    const announced = [...(this.#announcedByPod.get(key) ?? [])].filter((each) => this.#isValid(each, pod));
    const reported = reportedAddresses.flatMap((text): SetMember[] => {
      const address = parseAddress(text);
      const isForeign = address && !poolOf(this.#pools, hostPrefix(address));
      return isForeign ? [{ address, sequenceNumber: 0n }] : [];
    });
    return [...bound, ...announced, ...reported];
  }

  /** An address replaces its earlier announcement. An allocation that has ended is ignored. */
  announce({ nodeName, pod, addresses }: Announcement): void {
    const changed = new Map<string, PodName>([[formatPodName(pod), pod]]);
    for (const member of addresses) {
      const holder = this.#holderOf(member.address);
      if (holder && (holder.nodeName !== nodeName || holder.sequenceNumber > member.sequenceNumber)) continue;
      const { pod: earlier } = this.#drop(member.address) ?? {};
      for (const each of [earlier, holder?.pod]) if (each) changed.set(formatPodName(each), each);
      const announced = { nodeName, pod, ...member };
      this.#announced.set(formatAddress(member.address), announced);
      const known = this.#announcedByPod.get(formatPodName(pod)) ?? new Set();
      this.#announcedByPod.set(formatPodName(pod), known.add(announced));
      this.#countsByNode.set(nodeName, (this.#countsByNode.get(nodeName) ?? 0) + 1);
    }
    for (const each of this.#dropOldest(nodeName)) changed.set(formatPodName(each), each);
    for (const each of changed.values()) this.#options.changed(each);
  }

  setPools(pools: readonly Pool[]): void {
    const rangesOf = (some: readonly Pool[]): string => some.map(({ prefix }) => formatPrefix(prefix)).join();
    const hasChanged = rangesOf(this.#pools) !== rangesOf(pools);
    this.#pools = pools;
    if (hasChanged) this.#options.poolsChanged();
  }

  /** @param block - undefined if it is gone */
  setBlock(key: string, block: Block | undefined): void {
    const known = this.#blocks.get(key);
    const before = known?.allocations ?? NONE;
    const after = block ? allocationsOf(block) : NONE;
    if (block) this.#blocks.set(key, { block, allocations: after });
    else this.#blocks.delete(key);
    if (known) this.#prefixes.delete(formatPrefix(known.block.prefix));
    if (block) this.#prefixes.set(formatPrefix(block.prefix), block);
    const added = without(after, before);
    const removed = without(before, after);
    const changed = new Map([...removed, ...added].map(({ pod }) => [formatPodName(pod), pod]));
    for (const podKey of changed.keys()) {
      const isOwn = (each: Allocation): boolean => formatPodName(each.pod) === podKey;
      const kept = without(this.#byPod.get(podKey) ?? NONE, removed.filter(isOwn));
      const now = [...kept, ...added.filter(isOwn)];
      if (now.length > 0) this.#byPod.set(podKey, now);
      else this.#byPod.delete(podKey);
    }
    for (const pod of this.#endAnnouncements({ before: known?.block, after: block, added }))
      changed.set(formatPodName(pod), pod);
    for (const pod of changed.values()) this.#options.changed(pod);
  }

  /** @returns the pods of announcements that have ended, or count now */
  #endAnnouncements({ before, after, added }: BlockChange): readonly PodName[] {
    const { prefix } = after ?? before ?? {};
    const named = new Set(added.map(({ address }) => address.value));
    const changed: PodName[] = [];
    for (const { address, nodeName, pod } of this.#announced.values()) {
      if (!prefix || !prefixContains(prefix, address)) continue;
      const [was, is] = [before, after].map((block) => block && holderAt(block, address)?.nodeName === nodeName);
      if (named.has(address.value) || (was && !is)) this.#drop(address);
      else if (was === is) continue;
      changed.push(pod);
    }
    return changed;
  }

  /** Whether its node has announced an address of a pod for a later one. */
  #isGiven({ address }: Allocation): boolean {
    const announced = this.#announced.get(formatAddress(address));
    return announced !== undefined && this.#holderOf(address)?.nodeName === announced.nodeName;
  }

  #isValid({ address, nodeName, pod: { uid } }: Announced, pod: Pod): boolean {
    const isPod = nodeName === pod.nodeName && (uid === '' || uid === pod.uid);
    return isPod && this.#holderOf(address)?.nodeName === nodeName;
  }

  /** @returns the pods of the node's announcements beyond the limit */
  #dropOldest(nodeName: string): readonly PodName[] {
    const excess = (this.#countsByNode.get(nodeName) ?? 0) - ANNOUNCED_COUNT_MAX;
    if (excess <= 0) return [];
    const oldest = [...this.#announced.values()].filter((each) => each.nodeName === nodeName).slice(0, excess);
    for (const { address } of oldest) this.#drop(address);
    return oldest.map(({ pod }) => pod);
  }

  #drop(address: Address): Announced | undefined {
    const text = formatAddress(address);
    const announced = this.#announced.get(text);
    if (!announced) return undefined;
    this.#announced.delete(text);
    const key = formatPodName(announced.pod);
    const ofPod = this.#announcedByPod.get(key);
    ofPod?.delete(announced);
    if (ofPod?.size === 0) this.#announcedByPod.delete(key);
    const count = (this.#countsByNode.get(announced.nodeName) ?? 0) - 1;
    if (count > 0) this.#countsByNode.set(announced.nodeName, count);
    else this.#countsByNode.delete(announced.nodeName);
    return announced;
  }

  #holderOf(address: Address): Holder | undefined {
    const host = hostPrefix(address);
    for (const range of [...rangesAround(host), host]) {
      const block = this.#prefixes.get(formatPrefix(range));
      if (block) return holderAt(block, address);
    }
    return undefined;
  }
}

interface BlockChange {
  readonly before: Block | undefined;
  readonly after: Block | undefined;
  /** Allocations to pods that the block had not before. */
  readonly added: readonly Allocation[];
}

/** The holder of an address in the datastore: a node, perhaps for a pod. */
interface Holder {
  readonly nodeName: string | undefined;
  readonly pod: PodName | undefined;
  readonly sequenceNumber: bigint;
}

function holderAt(block: Block, address: Address): Holder | undefined {
  const ordinal = ordinalOf(block.prefix, address);
  const attributes = attributesAt(block, ordinal);
  if (!attributes || !isHeld(attributes)) return undefined;
  const sequenceNumber = block.sequenceNumbers[ordinal] ?? 0n;
  return { nodeName: attributes.owner.node, pod: podOf(attributes), sequenceNumber };
}

function podOf({ owner: { namespace, pod } }: AllocationAttributes): PodName | undefined {
  return namespace === undefined || pod === undefined ? undefined : { namespace, name: pod };
}

/** Allocations to pods, in the order of the addresses. */
function allocationsOf({ prefix, allocations, attributes, sequenceNumbers }: Block): readonly Allocation[] {
  const holders = attributes.map((each) => {
    const pod = podOf(each);
    const { node: nodeName } = each.owner;
    return isHeld(each) && pod && nodeName !== undefined ? { pod, nodeName } : undefined;
  });
  return allocations.flatMap((index, ordinal): Allocation[] => {
    const holder = index === null ? undefined : holders[index];
    const sequenceNumber = sequenceNumbers[ordinal] ?? 0n;
    return holder ? [{ address: addressAt(prefix, ordinal), sequenceNumber, ...holder }] : [];
  });
}

/** The allocations that the other list lacks. */
function without(list: readonly Allocation[], other: readonly Allocation[]): readonly Allocation[] {
  if (list.length === 0 || other.length === 0) return list;
  const known = new Map(other.map((each) => [each.address.value, each]));
  return list.filter((each) => !isSame(each, known.get(each.address.value)));
}

function isSame(a: Allocation, b: Allocation | undefined): boolean {
  return (
    a.address.family === b?.address.family &&
    a.sequenceNumber === b.sequenceNumber &&
    formatPodName(a.pod) === formatPodName(b.pod) &&
    a.nodeName === b.nodeName
  );
}
