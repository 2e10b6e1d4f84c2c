import { parseAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import type { SetMember } from '@podwire/shared/network-policy/policy';

import { isHeld, type Block } from '../records/block.js';
import { poolOf, type Pool } from '../records/pool.js';
import type { Pod, PodName } from './pods.js';

/** An address that IPAM has bound to a pod. */
interface Allocation extends SetMember {
  readonly pod: PodName;
  readonly nodeName: string;
}

export interface PodAddressesOptions {
  /** Receives pods whose addresses may have changed. */
  readonly changed: (pod: PodName) => void;
  /** The pools have changed: addresses that pods report may count now, or no longer. */
  readonly poolsChanged: () => void;
}

const NONE: readonly Allocation[] = [];

/** The addresses of pods: what IPAM has bound to them, and addresses outside of all pools as the kubelet reports them. */
export class PodAddresses {
  readonly #options: PodAddressesOptions;
  /** Allocations of each block, by the key of its record. */
  readonly #blocks = new Map<string, readonly Allocation[]>();
  readonly #byPod = new Map<string, readonly Allocation[]>();
  #pools: readonly Pool[] = [];

  constructor(options: PodAddressesOptions) {
    this.#options = options;
  }

  /** Only allocations of the pod's own node count: a node that allocates chooses the name of the pod. */
  of(pod: Pod): readonly SetMember[] {
    const { nodeName, reportedAddresses } = pod;
    const bound = this.#byPod.get(keyOf(pod)) ?? NONE;
    const reported = reportedAddresses.flatMap((text): SetMember[] => {
      const address = parseAddress(text);
      const isForeign = address && !poolOf(this.#pools, hostPrefix(address));
      return isForeign ? [{ address, sequenceNumber: 0n }] : [];
    });
    return [...bound.filter((each) => each.nodeName === nodeName), ...reported];
  }

  setPools(pools: readonly Pool[]): void {
    const rangesOf = (some: readonly Pool[]): string => some.map(({ prefix }) => formatPrefix(prefix)).join();
    const hasChanged = rangesOf(this.#pools) !== rangesOf(pools);
    this.#pools = pools;
    if (hasChanged) this.#options.poolsChanged();
  }

  /** @param block - undefined if it is gone */
  setBlock(key: string, block: Block | undefined): void {
    const before = this.#blocks.get(key) ?? NONE;
    const after = block ? allocationsOf(block) : NONE;
    if (after.length > 0) this.#blocks.set(key, after);
    else this.#blocks.delete(key);
    const added = without(after, before);
    const removed = without(before, after);
    const changed = new Map([...removed, ...added].map(({ pod }) => [keyOf(pod), pod]));
    for (const [podKey, pod] of changed) {
      const isOwn = (each: Allocation): boolean => keyOf(each.pod) === podKey;
      const kept = without(this.#byPod.get(podKey) ?? NONE, removed.filter(isOwn));
      const now = [...kept, ...added.filter(isOwn)];
      if (now.length > 0) this.#byPod.set(podKey, now);
      else this.#byPod.delete(podKey);
      this.#options.changed(pod);
    }
  }
}

/** Allocations to pods, in the order of the addresses. */
function allocationsOf({ prefix, allocations, attributes, sequenceNumbers }: Block): readonly Allocation[] {
  const holders = attributes.map((each) => {
    const { namespace, pod, node } = each.owner;
    const isPod = isHeld(each) && namespace !== undefined && pod !== undefined && node !== undefined;
    return isPod ? { pod: { namespace, name: pod }, nodeName: node } : undefined;
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
    keyOf(a.pod) === keyOf(b.pod) &&
    a.nodeName === b.nodeName
  );
}

function keyOf({ namespace, name }: PodName): string {
  return `${namespace}/${name}`;
}
