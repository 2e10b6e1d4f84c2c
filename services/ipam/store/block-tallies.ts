import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { Block } from '../allocator/records.js';
import { addTallies, NO_BLOCKS, subtractTallies, tallyOf, type BlockTally } from '../records/block-stats.js';

interface Entry {
  readonly prefix: Prefix;
  readonly tally: BlockTally;
}

/** Entries in the order of their addresses, with their sum. */
interface Run {
  readonly entries: Entry[];
  sum: BlockTally;
}

const LONGEST_RUN = 512;

/** Sums over the blocks of one family: those of a range cost an addition for every {@link LONGEST_RUN} of them or so. */
export class BlockTallies {
  /** In order, none empty. */
  readonly #runs: Run[] = [];

  /** Takes a block in, or its new state. */
  put(block: Block): void {
    const entry = { prefix: block.prefix, tally: tallyOf(block) };
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
      run.sum = addTallies(subtractTallies(run.sum, known.tally), entry.tally);
      return;
    }
    run.entries.splice(index + 1, 0, entry);
    run.sum = addTallies(run.sum, entry.tally);
    if (run.entries.length <= LONGEST_RUN) return;
    const behind = run.entries.splice(LONGEST_RUN / 2);
    const sum = sumOf(behind);
    run.sum = subtractTallies(run.sum, sum);
    this.#runs.splice(runIndex + 1, 0, { entries: behind, sum });
  }

  /** Nothing changes when it is not there. */
  delete(prefix: Prefix): void {
    const runIndex = this.#runOf(prefix);
    const run = this.#runs[runIndex];
    if (!run) return;
    const index = lastAtMost(run.entries, prefix);
    const known = run.entries[index];
    if (!known || comparePrefixes(known.prefix, prefix) !== 0) return;
    run.entries.splice(index, 1);
    run.sum = subtractTallies(run.sum, known.tally);
    if (run.entries.length === 0) this.#runs.splice(runIndex, 1);
  }

  /** Of the blocks that lie in a range. */
  within(range: Prefix): BlockTally {
    let sum = NO_BLOCKS;
    for (let index = Math.max(0, this.#runOf(range)); index < this.#runs.length; index++) {
      const run = this.#runs[index];
      const [first, last] = [run?.entries[0], run?.entries.at(-1)];
      if (!run || !first || !last) break;
      const isInside = ({ prefix }: Entry): boolean => prefixContains(range, prefix);
      if (isInside(first) && isInside(last)) sum = addTallies(sum, run.sum);
      else sum = addTallies(sum, sumOf(run.entries.filter(isInside)));
      if (last.prefix.value > range.value && !isInside(last)) break;
    }
    return sum;
  }

  /** Index of the run that has the prefix, if any has; -1 when all lie behind it. */
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

function sumOf(entries: readonly Entry[]): BlockTally {
  return entries.reduce((sum, { tally }) => addTallies(sum, tally), NO_BLOCKS);
}

/** Index of the last one that does not come behind the prefix; -1 when all do. */
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
