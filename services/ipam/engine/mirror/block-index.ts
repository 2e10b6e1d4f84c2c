import type { Prefix } from '@podwire/shared/net/prefix';

import type { Affinity, Block } from '../../allocator/records.js';
import { isIdle, isLoose, mayGive } from '../../allocator/spent.js';
import { SortedPrefixes } from './sorted-runs.js';

/**
 * Which blocks there are of each size, and which of them a search for an address would look at: however many others there are, they
 * cost nothing.
 */
export class BlockIndex {
  readonly #bySize = new Map<string, SortedPrefixes>();
  readonly #roomy = new FamilyLists();
  readonly #idle = new FamilyLists();
  readonly #loose = new FamilyLists();

  /** @param affinity - the owner's affinity for it */
  add(block: Block, affinity: Affinity | undefined): void {
    const size = sizeOf(block.prefix);
    const known = this.#bySize.get(size) ?? new SortedPrefixes();
    this.#bySize.set(size, known);
    known.add(block.prefix);
    this.judge(block, affinity);
  }

  /** What was added has changed, or its owner's affinity has. */
  judge(block: Block, affinity: Affinity | undefined): void {
    const { prefix } = block;
    this.#roomy.put(prefix, mayGive(block));
    this.#idle.put(prefix, isIdle(block));
    this.#loose.put(prefix, isLoose(block, affinity));
  }

  delete({ prefix }: Block): void {
    this.#bySize.get(sizeOf(prefix))?.delete(prefix);
    for (const list of [this.#roomy, this.#idle, this.#loose]) list.put(prefix, false);
  }

  roomyIn(range: Prefix): Iterable<Prefix> {
    return this.#roomy.within(range);
  }

  idleIn(range: Prefix): Iterable<Prefix> {
    return this.#idle.within(range);
  }

  looseIn(range: Prefix): Iterable<Prefix> {
    return this.#loose.within(range);
  }

  consecutiveFrom(first: Prefix): number {
    return this.#bySize.get(sizeOf(first))?.consecutiveFrom(first) ?? 0;
  }
}

class FamilyLists {
  readonly #lists = { 4: new SortedPrefixes(), 6: new SortedPrefixes() };

  put(prefix: Prefix, belongs: boolean): void {
    const list = this.#lists[prefix.family];
    if (belongs) list.add(prefix);
    else list.delete(prefix);
  }

  within(range: Prefix): Iterable<Prefix> {
    return this.#lists[range.family].within(range);
  }
}

function sizeOf({ family, length }: Prefix): string {
  return `${family}/${length}`;
}
