import type { Block } from '../block.js';
import {
  formatHead,
  formatMiddle,
  formatSequenceNumber,
  formatTail,
  attributesText,
  type StoredBlock,
} from './block.js';
import type { JsonObject } from './json.js';

/**
 * The bytes of a block. A block is written whole with every allocation, and all but one of its addresses are unchanged:
 * unchanged parts are copied from the previously written bytes where those are still known. Serializing again would
 * visit hundreds of small objects, which exceed the processor's caches when many nodes have a block each.
 */

/** Positions of a block's parts in its bytes. */
interface BlockParts {
  readonly headEnd: number;
  readonly attributes: WrittenList;
  readonly numbers: WrittenList;
}

interface WrittenBlock extends BlockParts {
  readonly bytes: Buffer;
  readonly raw: JsonObject;
}

/**
 * Limit of the cached bytes of recently written blocks: about 400 blocks of 64 addresses. The positions of their parts
 * take at most as much again.
 */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;

class RecentBlocks {
  readonly #blocks = new Map<Block, WrittenBlock>();
  #bytes = 0;

  /** Removes the entry: the successor of a block's state is written once, or again only when its transaction loses. */
  take(block: Block): WrittenBlock | undefined {
    const written = this.#blocks.get(block);
    if (!written) return undefined;
    this.#blocks.delete(block);
    this.#bytes -= written.bytes.length;
    return written;
  }

  keep(block: Block, written: WrittenBlock): void {
    this.take(block);
    this.#blocks.set(block, written);
    this.#bytes += written.bytes.length;
    for (const oldest of this.#blocks.keys()) {
      if (this.#bytes <= MAX_KEPT_BYTES) return;
      this.take(oldest);
    }
  }
}

const recentBlocks = new RecentBlocks();

const FIRST_BYTES = 64 * 1024;
/** Maximum bytes of a UTF-16 code unit in UTF-8. */
const MAX_UNIT_BYTES = 3;
/** Digits of the largest integer, or `null`, with the comma. */
const MAX_INTEGER_BYTES = 17;

const COMMA = 0x2c;
const ZERO = 0x30;
const NULL = [0x6e, 0x75, 0x6c, 0x6c];

/** Assembles bytes from texts and from parts of other bytes. It is reused and keeps its memory. */
export class ByteWriter {
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES);
  #count = 0;
  #from: Buffer | undefined;

  /** @param from - the source of {@link copy} and {@link list} */
  begin(from: Buffer | undefined): void {
    this.#count = 0;
    this.#from = from;
  }

  /** Number of bytes written. */
  get count(): number {
    return this.#count;
  }

  text(text: string): void {
    this.#reserve(text.length * MAX_UNIT_BYTES);
    this.#count += this.#bytes.write(text, this.#count);
  }

  copy(begin: number, end: number): void {
    this.#reserve(end - begin);
    this.#count += this.#from?.copy(this.#bytes, this.#count, begin, end) ?? 0;
  }

  /** Integers from 0 to 2^53 - 1, with commas between them. */
  integers(values: readonly (number | null)[]): void {
    this.#reserve(values.length * MAX_INTEGER_BYTES);
    const bytes = this.#bytes;
    let at = this.#count;
    for (let index = 0; index < values.length; index++) {
      if (index > 0) bytes[at++] = COMMA;
      const value = values[index] ?? null;
      if (value === null) for (const letter of NULL) bytes[at++] = letter;
      else at = putDigits(bytes, at, value);
    }
    this.#count = at;
  }

  /** Items with commas between them. Unchanged ones are copied. */
  list<Item>(items: readonly Item[], { before, shared, textOf }: ListInput<Item>): WrittenList {
    const at = this.#count;
    const head = before ? shared.head : 0;
    const tail = before ? shared.tail : 0;
    const ends = before ? before.ends.slice(0, head) : [];
    if (before && head > 0) this.copy(before.at, before.at + (ends[head - 1] ?? 0));
    const texts = items.slice(head, items.length - tail).map((item, index) => textOf(item, head + index));
    this.#listTexts(texts, { at, ends });
    if (before && tail > 0) this.#copyTail(before, tail, { at, ends });
    return { at, ends };
  }

  /** A copy of the bytes. */
  end(): Buffer {
    this.#from = undefined;
    const bytes = Buffer.allocUnsafeSlow(this.#count);
    this.#bytes.copy(bytes, 0, 0, this.#count);
    return bytes;
  }

  /** Appends all texts in one call: a call for each would take most of the time of rewriting a list. */
  #listTexts(texts: readonly string[], { at, ends }: NewList): void {
    const begun = this.#count - at;
    const written = texts.filter((text) => text !== '').join(',');
    const all = begun > 0 && written !== '' ? `,${written}` : written;
    this.text(all);
    const isAscii = this.#count - at - begun === all.length;
    let end = begun;
    for (const text of texts) {
      if (text !== '') end += (end > 0 ? 1 : 0) + (isAscii ? text.length : Buffer.byteLength(text));
      ends.push(end);
    }
  }

  #copyTail(before: WrittenList, tail: number, { at, ends }: NewList): void {
    const first = before.ends.length - tail;
    const begin = first > 0 ? (before.ends[first - 1] ?? 0) : 0;
    const end = before.ends[before.ends.length - 1] ?? 0;
    const begun = this.#count - at;
    if (begin < end) {
      // The first item of a list has no comma before it.
      if (begun > 0) this.text(',');
      this.copy(before.at + (begin > 0 ? begin + 1 : 0), before.at + end);
    }
    const shift = this.#count - at - end;
    for (let index = first; index < before.ends.length; index++) {
      const earlier = before.ends[index] ?? 0;
      ends.push(earlier === begin ? begun : earlier + shift);
    }
  }

  #reserve(bytes: number): void {
    const needed = this.#count + bytes;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(2 * needed);
    this.#bytes.copy(larger, 0, 0, this.#count);
    this.#bytes = larger;
  }
}

const writer = new ByteWriter();

/**
 * The bytes of a block's text, as `formatBlock` returns it. Reuses the bytes that were written last if they are cached.
 */
export function writeBlock(block: Block, stored: StoredBlock): Buffer {
  const known = stored.value && recentBlocks.take(stored.value);
  const isSame = known?.raw === stored.raw && stored.value?.prefix === block.prefix;
  const parts = writeParts(block, stored, isSame ? known : undefined);
  const bytes = writer.end();
  recentBlocks.keep(block, { ...parts, bytes, raw: stored.raw });
  return bytes;
}

/** Assembles the bytes in {@link writer}. */
function writeParts(block: Block, { value: before, raw }: StoredBlock, known: WrittenBlock | undefined): BlockParts {
  writer.begin(known?.bytes);
  if (known && hasSameHead(block, before)) writer.copy(0, known.headEnd);
  else writer.text(formatHead(block, raw));
  const headEnd = writer.count;
  writer.text(',"allocations":[');
  writer.integers(block.allocations);
  writer.text('],"unallocated":[');
  writer.integers(block.unallocated);
  writer.text('],"attributes":[');
  const earlier = before?.attributes ?? [];
  const shared = sharedEnds(earlier, block.attributes);
  const gone = earlier.slice(shared.head, earlier.length - shared.tail);
  const writing = { block, before, gone };
  const attributes = writer.list(block.attributes, {
    before: known?.attributes,
    shared,
    textOf: (entry) => attributesText(entry, writing),
  });
  writer.text(`]${formatMiddle(raw)}${block.sequenceNumber},"sequenceNumberForAllocation":{`);
  const numbers = writer.list(block.sequenceNumbers, {
    before: known?.numbers,
    shared: sharedEnds(before?.sequenceNumbers ?? [], block.sequenceNumbers),
    textOf: formatSequenceNumber,
  });
  writer.text(`}${formatTail(raw)}`);
  return { headEnd, attributes, numbers };
}

function hasSameHead({ owner, claimTimeMs }: Block, before: Block | undefined): boolean {
  return owner === before?.owner && claimTimeMs === before?.claimTimeMs;
}

/** A written list, with a comma between two items. */
interface WrittenList {
  /** Its start in the bytes. */
  readonly at: number;
  /** The end of each item, relative to `at`. An item without a text ends where the previous one does. */
  readonly ends: readonly number[];
}

/** Number of items that two lists share at the beginning and at the end. */
interface SharedEnds {
  readonly head: number;
  readonly tail: number;
}

export function sharedEnds<Item>(a: readonly Item[], b: readonly Item[]): SharedEnds {
  const shorter = Math.min(a.length, b.length);
  let head = 0;
  while (head < shorter && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < shorter - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  return { head, tail };
}

interface ListInput<Item> {
  /** The list in the bytes to copy from; undefined without such bytes. */
  readonly before: WrittenList | undefined;
  /** The items that this list shares with the new one. */
  readonly shared: SharedEnds;
  /** Empty for an item that is not written. */
  readonly textOf: (item: Item, index: number) => string;
}

/** A list that is being written: its start and the ends of its items. */
interface NewList {
  readonly at: number;
  readonly ends: number[];
}

/** @returns the position of the next byte */
function putDigits(bytes: Buffer, at: number, value: number): number {
  const tens = Math.floor(value / 10);
  const next = tens > 0 ? putDigits(bytes, at, tens) : at;
  bytes[next] = ZERO + (value - 10 * tens);
  return next + 1;
}
