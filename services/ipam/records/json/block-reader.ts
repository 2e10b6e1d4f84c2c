import type { AllocationAttributes } from '../attributes.js';
import type { Block } from '../block.js';
import type { PreviousState } from './fields.js';

/**
 * Reads the text of a rewritten block, most of which is unchanged. The watch delivers one with every allocation of
 * another replica. Recognizing attributes by their texts takes a tenth of the time of parsing JSON.
 */

/** The parts of the stored form (`block.ts`) that the reader needs. */
export interface BlockFormat {
  /** The text before the allocations. */
  readonly head: (block: Block, raw: PreviousState<Block>['raw']) => string;
  /** The text between the attributes and the sequence number. */
  readonly middle: (raw: PreviousState<Block>['raw']) => string;
  /** The stored text of attributes. */
  readonly formOf: (value: AllocationAttributes) => string;
  /** @throws Unreadable */
  readonly readAttributes: (text: string) => AllocationAttributes;
}

/** Maximum number of removed attributes between two that stayed. */
const MAX_GONE_COUNT = 4;

/**
 * Parses a text that may be another state of a block. The caller verifies that the result is a valid block and
 * serializes to exactly this text; this function checks only what it needs.
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

/** Reads up to and including the closing bracket. */
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

/** Skips the next attributes if they are among the first candidates. @returns their index, or -1 */
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

/** Reads up to and including the closing brace. */
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

  /** Skips the expected text if it is next. @returns whether it was */
  accept(wanted: string): boolean {
    // Not startsWith, which compares letter by letter in Node.js 20.
    const end = this.#at + wanted.length;
    if (this.#text.slice(this.#at, end) !== wanted) return false;
    this.#at = end;
    return true;
  }

  /** A list without nested lists, after its label. */
  list(label: string): readonly unknown[] | undefined {
    const end = this.accept(label) ? this.#text.indexOf(']', this.#at) + 1 : 0;
    if (end === 0) return undefined;
    const list: unknown = JSON.parse(this.#text.slice(this.#at, end));
    this.#at = end;
    return Array.isArray(list) ? list : undefined;
  }

  /** The next digits. */
  digits(): string | undefined {
    const start = this.#at;
    while (isDigit(this.#text.charCodeAt(this.#at))) this.#at++;
    return this.#at > start ? this.#text.slice(start, this.#at) : undefined;
  }

  /** The text of the next object. */
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
