import type { AllocationAttributes } from '../attributes.js';
import type { Block } from '../block.js';
import type { PreviousState } from './fields.js';

/**
 * The text of a block that was written again: most of it is as it was before, and another replica's watch brings it with every address that is
 * given. So its attributes are recognized by their texts, which costs a tenth of the way over its JSON.
 */

/** What this needs of how blocks are written (`block.ts`). */
export interface BlockFormat {
  /** The text from its beginning to where the allocations come. */
  readonly head: (block: Block, raw: PreviousState<Block>['raw']) => string;
  /** Between the attributes and the sequence number. */
  readonly middle: (raw: PreviousState<Block>['raw']) => string;
  /** The text of attributes that are stored. */
  readonly formOf: (value: AllocationAttributes) => string;
  /** @throws Unreadable */
  readonly readAttributes: (text: string) => AllocationAttributes;
}

/** So many of the attributes before may have gone between two that stayed. */
const MAX_GONE_COUNT = 4;

/**
 * Parses a text that may be another state of a block. The caller verifies that the result is a valid block and
 * serializes to exactly this text; this checks only what it must.
 * @returns undefined for a text in another format, or with another owner
 * @throws Unreadable, SyntaxError
 */
export function parseRewrittenBlock(
  text: string,
  { value: before, raw }: PreviousState<Block>,
  forms: BlockFormat,
): Block | undefined {
  const head = forms.head(before, raw);
  if (!text.startsWith(head)) return undefined;
  const reader = new Reader(text, head.length);
  const allocations = reader.list(',"allocations":');
  const unallocated = reader.list(',"unallocated":');
  const attributes = reader.accept(',"attributes":[') ? readAttributes(reader, before.attributes, forms) : undefined;
  if (!allocations || !unallocated || !attributes || !reader.accept(forms.middle(raw))) return undefined;
  const sequenceNumber = reader.digits();
  const sequenceNumbers = reader.accept(',"sequenceNumberForAllocation":{')
    ? readNumbers(reader, before.allocations.length)
    : undefined;
  if (sequenceNumber === undefined || !sequenceNumbers || !reader.accept('}') || !reader.isAtEnd) return undefined;
  const { prefix, owner, claimTimeMs } = before;
  return {
    prefix,
    owner,
    claimTimeMs,
    allocations: allocations.map((index) => (typeof index === 'number' ? index : null)),
    unallocated: numbersIn(unallocated),
    attributes,
    sequenceNumber: BigInt(sequenceNumber),
    sequenceNumbers,
  };
}

function numbersIn(list: readonly unknown[]): number[] {
  return list.filter((ordinal) => typeof ordinal === 'number');
}

/** Up to the bracket behind them. */
function readAttributes(
  reader: Reader,
  before: readonly AllocationAttributes[],
  { formOf, readAttributes: read }: BlockFormat,
): AllocationAttributes[] | undefined {
  const found: AllocationAttributes[] = [];
  for (let next = 0; !reader.accept(']');) {
    if (found.length > 0 && !reader.accept(',')) return undefined;
    const known = indexOfNext(reader, before, { from: next, formOf });
    const value = before[known];
    if (value) {
      found.push(value);
      next = known + 1;
      continue;
    }
    const text = reader.object();
    if (text === undefined) return undefined;
    found.push(read(text));
  }
  return found;
}

/** Goes behind attributes that are next, if they are among the first of those that may be. @returns their index, -1 if they are not */
function indexOfNext(
  reader: Reader,
  attributes: readonly AllocationAttributes[],
  { from, formOf }: { readonly from: number; readonly formOf: BlockFormat['formOf'] },
): number {
  const end = Math.min(from + 1 + MAX_GONE_COUNT, attributes.length);
  for (let index = from; index < end; index++) {
    const value = attributes[index];
    if (value && reader.accept(formOf(value))) return index;
  }
  return -1;
}

/** Up to the brace behind them. */
function readNumbers(reader: Reader, size: number): (bigint | null)[] | undefined {
  const numbers = new Array<bigint | null>(size).fill(null);
  for (let count = 0; !reader.accept('}'); count++) {
    if (count > 0 && !reader.accept(',')) return undefined;
    const ordinal = reader.accept('"') ? reader.digits() : undefined;
    const number = reader.accept('":') ? reader.digits() : undefined;
    if (ordinal === undefined || Number(ordinal) >= size || number === undefined) return undefined;
    numbers[Number(ordinal)] = BigInt(number);
  }
  return numbers;
}

class Reader {
  readonly #text: string;
  #at: number;

  constructor(text: string, at: number) {
    this.#text = text;
    this.#at = at;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#text.length;
  }

  /** Goes behind a text that is next. @returns whether it is */
  accept(wanted: string): boolean {
    // Not startsWith, which in Node.js 20 goes letter by letter.
    const end = this.#at + wanted.length;
    if (this.#text.slice(this.#at, end) !== wanted) return false;
    this.#at = end;
    return true;
  }

  /** A list of values that are no lists, behind its label. */
  list(label: string): readonly unknown[] | undefined {
    const end = this.accept(label) ? this.#text.indexOf(']', this.#at) + 1 : 0;
    if (end === 0) return undefined;
    const list: unknown = JSON.parse(this.#text.slice(this.#at, end));
    this.#at = end;
    return Array.isArray(list) ? list : undefined;
  }

  /** The digits that are next. */
  digits(): string | undefined {
    const start = this.#at;
    while (isDigit(this.#text.charCodeAt(this.#at))) this.#at++;
    return this.#at > start ? this.#text.slice(start, this.#at) : undefined;
  }

  /** The text of the object that is next. */
  object(): string | undefined {
    const start = this.#at;
    let depth = 0;
    for (let isQuoted = false; this.#at < this.#text.length;) {
      const sign = this.#text[this.#at++];
      if (isQuoted && sign === '\\') this.#at++;
      else if (sign === '"') isQuoted = !isQuoted;
      else if (isQuoted) continue;
      else if (sign === '{') depth++;
      else if (sign === '}' && --depth === 0) return this.#text.slice(start, this.#at);
    }
    return undefined;
  }
}

function isDigit(code: number): boolean {
  return code >= 48 && code <= 57;
}
