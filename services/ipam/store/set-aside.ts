import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { rangesAround } from '../pools/pools.js';
import type { UnreadableBlock, UnreadableRecord } from '../records/view.js';

/** The records that cannot be read, few or none: by their keys, and the blocks among them in the order of their addresses. */
export class SetAside {
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

/** Index of the first block that does not come before the prefix. */
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
