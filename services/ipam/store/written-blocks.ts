import { prefixSize, type Prefix } from '@podwire/shared/net/prefix';

import type { Block } from '../allocator/records.js';
import { SortedPrefixes } from '../engine/mirror/sorted-runs.js';

export interface WrittenBlocksOptions {
  /** The block as it is once the decisions are committed. */
  readonly blockAt: (prefix: Prefix) => Block | undefined;
  /** Whether a block that exists is loose, see {@link View.looseBlocksIn}. */
  readonly isLoose: (block: Block) => boolean;
}

/**
 * The blocks that the decisions of a draft write, in the order of their addresses. Most decisions look at none of them but their own: what
 * is noted is put in order when somebody asks, once.
 */
export class WrittenBlocks {
  readonly #options: WrittenBlocksOptions;
  /** By the key of the block: noted since it was last put in its place. */
  readonly #unplaced = new Map<string, Prefix>();
  readonly #shown = new SortedPrefixes();
  /** What they are in place of. */
  readonly #replaced = new Set<Block>();
  /** Blocks that were stored and are no more, by their keys. */
  readonly #deleted = new Map<string, Prefix>();
  /** By the key of the block: whether it is loose is to be asked anew. */
  readonly #unjudged = new Map<string, Prefix>();
  /** Keys of the blocks that are judged here. */
  readonly #judged = new Set<string>();
  readonly #loose = new SortedPrefixes();

  constructor(options: WrittenBlocksOptions) {
    this.#options = options;
  }

  /** A block is written, or deleted. @param stored - what it is in place of */
  note(key: string, prefix: Prefix, stored: Block | undefined): void {
    if (stored) this.#replaced.add(stored);
    this.#unplaced.set(key, prefix);
    this.#unjudged.set(key, prefix);
  }

  /** An affinity for a block is written, or deleted. */
  noteAffinity(key: string, prefix: Prefix): void {
    this.#unjudged.set(key, prefix);
  }

  /** Whether a stored block is written here, so that it is listed from here. */
  replaces(stored: Block): boolean {
    return this.#replaced.has(stored);
  }

  /** The stored blocks that are written here. */
  get replaced(): Iterable<Block> {
    return this.#replaced;
  }

  /** Those that lie in a range, in order. */
  within(range: Prefix): Block[] {
    this.#place();
    return this.#blocksOf(this.#shown.within(range));
  }

  /**
   * How many of so many blocks that were stored one behind the other still are, from the first on, which is.
   * @param count - at least 1
   */
  undeletedFrom(first: Prefix, count: number): number {
    this.#place();
    const size = prefixSize(first);
    for (const { family, length, value } of this.#deleted.values()) {
      if (family !== first.family || length !== first.length || value <= first.value) continue;
      count = Math.min(count, Number((value - first.value) / size));
    }
    return count;
  }

  /** Whether it is told here if the block of the key is loose: by {@link looseWithin}, and not by what is stored. */
  judges(key: string): boolean {
    return this.#unjudged.has(key) || this.#judged.has(key);
  }

  /** The loose ones in a range, in order. */
  looseWithin(range: Prefix): Block[] {
    this.#judge();
    return this.#blocksOf(this.#loose.within(range));
  }

  #place(): void {
    for (const [key, prefix] of this.#unplaced) {
      if (this.#options.blockAt(prefix)) {
        this.#shown.add(prefix);
        this.#deleted.delete(key);
      } else {
        this.#shown.delete(prefix);
        this.#deleted.set(key, prefix);
      }
    }
    this.#unplaced.clear();
  }

  #judge(): void {
    for (const [key, prefix] of this.#unjudged) {
      const block = this.#options.blockAt(prefix);
      this.#judged.add(key);
      if (block && this.#options.isLoose(block)) this.#loose.add(prefix);
      else this.#loose.delete(prefix);
    }
    this.#unjudged.clear();
  }

  #blocksOf(prefixes: Iterable<Prefix>): Block[] {
    const blocks: Block[] = [];
    for (const prefix of prefixes) {
      const block = this.#options.blockAt(prefix);
      if (block) blocks.push(block);
    }
    return blocks;
  }
}
