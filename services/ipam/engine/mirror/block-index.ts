import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import {
  addStats,
  isIdle,
  isWithoutAffinity,
  hasFreeOrCooling,
  EMPTY_STATS,
  subtractStats,
  blockStats,
  type BlockStats,
} from '../../records/block-stats.js';
import { rangesAround, type Affinity, type Block } from '../../records/block.js';
import type { UnreadableBlock, UnreadableRecord } from '../../records/view.js';
import { SortedPrefixes } from './sorted-runs.js';

/** Existing blocks by size, and the blocks that an address search examines; other blocks cost nothing. */
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
    this.update(block, affinity);
  }

  /** Updates the lists after a change of the block or of its owner's affinity. */
  update(block: Block, affinity: Affinity | undefined): void {
    const { prefix } = block;
    this.#roomy.put(prefix, hasFreeOrCooling(block));
    this.#idle.put(prefix, isIdle(block));
    this.#loose.put(prefix, isWithoutAffinity(block, affinity));
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

  put(prefix: Prefix, isListed: boolean): void {
    const list = this.#lists[prefix.family];
    if (isListed) list.add(prefix);
    else list.delete(prefix);
  }

  within(range: Prefix): Iterable<Prefix> {
    return this.#lists[range.family].within(range);
  }
}

function sizeOf({ family, length }: Prefix): string {
  return `${family}/${length}`;
}

interface Entry {
  readonly prefix: Prefix;
  readonly tally: BlockStats;
}

/** Entries in the order of their addresses, with their sum. */
interface Run {
  readonly entries: Entry[];
  sum: BlockStats;
}

const LONGEST_RUN = 512;

/** Sums over the blocks of one family: those of a range cost an addition for every {@link LONGEST_RUN} of them or so. */
export class BlockStatsSums {
  /** In order, none empty. */
  readonly #runs: Run[] = [];

  /** Adds a block, or replaces its state. */
  put(block: Block): void {
    const entry = { prefix: block.prefix, tally: blockStats(block) };
    const runIndex = Math.max(0, this.#runOf(block.prefix));
    const run = this.#runs[runIndex];
    if (!run) {
      this.#runs.push({ entries: [entry], sum: entry.tally });
      return;
    }
    const index = lastAtMost(run.entries, entry.prefix);
    const known = run.entries[index];
    if (known && comparePrefixes(known.prefix, entry.prefix) === 0) {
      run.entries[index] = entry;
      run.sum = addStats(subtractStats(run.sum, known.tally), entry.tally);
      return;
    }
    run.entries.splice(index + 1, 0, entry);
    run.sum = addStats(run.sum, entry.tally);
    if (run.entries.length <= LONGEST_RUN) return;
    const behind = run.entries.splice(LONGEST_RUN / 2);
    const sum = sumOf(behind);
    run.sum = subtractStats(run.sum, sum);
    this.#runs.splice(runIndex + 1, 0, { entries: behind, sum });
  }

  /** No effect when it is missing. */
  delete(prefix: Prefix): void {
    const runIndex = this.#runOf(prefix);
    const run = this.#runs[runIndex];
    if (!run) return;
    const index = lastAtMost(run.entries, prefix);
    const known = run.entries[index];
    if (!known || comparePrefixes(known.prefix, prefix) !== 0) return;
    run.entries.splice(index, 1);
    run.sum = subtractStats(run.sum, known.tally);
    if (run.entries.length === 0) this.#runs.splice(runIndex, 1);
  }

  /** Of the blocks that lie in a range. */
  within(range: Prefix): BlockStats {
    let sum = EMPTY_STATS;
    for (let index = Math.max(0, this.#runOf(range)); index < this.#runs.length; index++) {
      const run = this.#runs[index];
      const [first, last] = [run?.entries[0], run?.entries.at(-1)];
      if (!run || !first || !last) break;
      const isInside = ({ prefix }: Entry): boolean => prefixContains(range, prefix);
      if (isInside(first) && isInside(last)) sum = addStats(sum, run.sum);
      else sum = addStats(sum, sumOf(run.entries.filter(isInside)));
      if (last.prefix.value > range.value && !isInside(last)) break;
    }
    return sum;
  }

  /** Index of the run that may have the prefix; -1 when all runs follow it. */
  #runOf(prefix: Prefix): number {
    let low = 0;
    for (let high = this.#runs.length; low < high;) {
      const middle = (low + high) >>> 1;
      const first = this.#runs[middle]?.entries[0];
      if (first && comparePrefixes(first.prefix, prefix) <= 0) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}

function sumOf(entries: readonly Entry[]): BlockStats {
  return entries.reduce((sum, { tally }) => addStats(sum, tally), EMPTY_STATS);
}

/** Index of the last one not after the prefix; -1 when all are after it. */
function lastAtMost(entries: readonly Entry[], prefix: Prefix): number {
  let low = 0;
  for (let high = entries.length; low < high;) {
    const middle = (low + high) >>> 1;
    const entry = entries[middle];
    if (entry && comparePrefixes(entry.prefix, prefix) <= 0) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The unreadable records, usually none: by key, and the blocks among them in address order. */
export class UnreadableRecords {
  readonly #records = new Map<string, UnreadableRecord>();
  readonly #blocks: Readonly<Record<Family, UnreadableBlock[]>> = { 4: [], 6: [] };

  set(record: UnreadableRecord): void {
    this.delete(record.key);
    this.#records.set(record.key, record);
    if (!isBlock(record)) return;
    const blocks = this.#blocks[record.name.prefix.family];
    blocks.splice(lowerBound(blocks, record.name.prefix), 0, record);
  }

  delete(key: string): void {
    const record = this.#records.get(key);
    if (!record) return;
    this.#records.delete(key);
    if (!isBlock(record)) return;
    const blocks = this.#blocks[record.name.prefix.family];
    blocks.splice(lowerBound(blocks, record.name.prefix), 1);
  }

  get(key: string): UnreadableRecord | undefined {
    return this.#records.get(key);
  }

  get isEmpty(): boolean {
    return this.#records.size === 0;
  }

  all(): Iterable<UnreadableRecord> {
    return this.#records.values();
  }

  /** The first block within the prefix, or else the largest possible one around it. */
  blockAcross(prefix: Prefix): UnreadableBlock | undefined {
    const blocks = this.#blocks[prefix.family];
    if (blocks.length === 0) return undefined;
    const within = blocks[lowerBound(blocks, prefix)];
    if (within && prefixContains(prefix, within.name.prefix)) return within;
    for (const range of rangesAround(prefix)) {
      const around = blocks[lowerBound(blocks, range)];
      if (around && comparePrefixes(around.name.prefix, range) === 0) return around;
    }
    return undefined;
  }
}

function isBlock(record: UnreadableRecord): record is UnreadableBlock {
  return record.name.kind === 'block';
}

/** Index of the first block not before the prefix. */
function lowerBound(blocks: readonly UnreadableBlock[], prefix: Prefix): number {
  let low = 0;
  for (let high = blocks.length; low < high;) {
    const middle = (low + high) >>> 1;
    const block = blocks[middle];
    if (block && comparePrefixes(block.name.prefix, prefix) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}
