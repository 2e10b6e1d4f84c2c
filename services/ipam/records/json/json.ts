/**
 * JSON with exact integers. Calico's block sequence numbers are 64-bit: they start at the clock in nanoseconds, about
 * 2^60. JSON.parse of Node.js 20 rounds integers beyond 2^53 and does not expose their source. So each is put into a
 * marked string before parsing, and converted back afterwards. Most texts have none and go straight through JSON.parse.
 */

/** A JSON value. Integers beyond 2^53 are bigints; all other numbers are numbers. */
export type Json = null | boolean | number | bigint | string | readonly Json[] | JsonObject;

export interface JsonObject {
  readonly [key: string]: Json;
}

/**
 * Begins every marked string. JSON text can contain it only as the escape {@link MARK_ESCAPE}, which makes collisions
 * detectable.
 */
const MARK = '\u0001';
const MARK_ESCAPE = '\\u0001';

/** No integer of fewer digits exceeds 2^53. */
const SHORTEST_BIG_INTEGER = 16;

const INTEGER_IN_GAP = /-?[1-9]\d{15,}(?![\d.eE])/g;

/** @throws SyntaxError when the text is not JSON */
export function parseJson(text: string): Json {
  const { marked, count } = markBigIntegers(text.includes(MARK_ESCAPE) ? doubleMarks(text) : text);
  const value: unknown = JSON.parse(marked);
  if (!isParsed(value)) throw new Error('JSON.parse made no value');
  return count > 0 || marked.includes(MARK_ESCAPE) ? unmark(value) : value;
}

/** Writes a value as `JSON.stringify` does, bigints as integers. */
export function formatJson(value: Json): string {
  if (typeof value === 'string') return quote(value);
  if (value === null) return 'null';
  if (isArray(value)) return formatArray(value);
  if (typeof value === 'object') return formatObject(value);
  // Another writer's number that overflowed. This text overflows to the same value.
  if (value === Infinity) return '1e999';
  return value === -Infinity ? '-1e999' : String(value);
}

export function isArray(value: Json | undefined): value is readonly Json[] {
  return Array.isArray(value);
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Doubles the mark in source strings that begin with it, to distinguish them from marked integers. */
function doubleMarks(text: string): string {
  return text.replace(/\\(?:u0001|[^])/g, (escape) => (escape === MARK_ESCAPE ? MARK_ESCAPE + MARK_ESCAPE : escape));
}

/** Searches for integers only between strings. */
function markBigIntegers(text: string): { readonly marked: string; readonly count: number } {
  let marked = '';
  let copied = 0;
  let count = 0;
  for (let from = 0; from < text.length;) {
    const quoteAt = text.indexOf('"', from);
    const gapEnd = quoteAt < 0 ? text.length : quoteAt;
    if (gapEnd - from >= SHORTEST_BIG_INTEGER) {
      const gap = text.slice(from, gapEnd);
      const rewritten = gap.replace(INTEGER_IN_GAP, (digits, at: number) => {
        if (/[\d.eE+-]/.test(gap[at - 1] ?? '') || Number.isSafeInteger(Number(digits))) return digits;
        count++;
        return `"${MARK_ESCAPE}${digits}"`;
      });
      if (rewritten !== gap) {
        marked += text.slice(copied, from) + rewritten;
        copied = gapEnd;
      }
    }
    from = endOfString(text, gapEnd);
  }
  return { marked: count === 0 ? text : marked + text.slice(copied), count };
}

/** The position after the string that begins at `quoteAt`. */
function endOfString(text: string, quoteAt: number): number {
  for (let end = text.indexOf('"', quoteAt + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === 0x5c) backslashes++;
    if (backslashes % 2 === 0) return end + 1;
  }
  return text.length;
}

type MutableJson = null | boolean | number | bigint | string | MutableJson[] | { [key: string]: MutableJson };

/** Narrows the type: JSON.parse returns nothing else. */
function isParsed(value: unknown): value is MutableJson {
  return value !== undefined;
}

/** Changes fresh values in place: copying costs three times as much on a full block. */
function unmark(value: MutableJson): MutableJson {
  if (typeof value === 'string') return value.includes(MARK) ? unmarkText(value) : value;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index++) value[index] = unmark(value[index] ?? null);
    return value;
  }
  const keys = Object.keys(value);
  if (keys.some((key) => key.includes(MARK)))
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [unmarkKey(key), unmark(item)]));
  for (const key of keys) {
    const item = value[key] ?? null;
    // Assigning only what changes keeps V8 from rewriting the object; `__proto__` is an own property here and stays one.
    const unmarked = unmark(item);
    if (unmarked !== item) value[key] = unmarked;
  }
  return value;
}

function unmarkText(text: string): string | bigint {
  return text.startsWith(MARK) && text[1] !== MARK ? BigInt(text.slice(1)) : unmarkKey(text);
}

function unmarkKey(text: string): string {
  return text.includes(MARK) ? text.replaceAll(MARK + MARK, MARK) : text;
}

const NEEDS_ESCAPE = /["\\\p{Cc}\p{Cs}]/u;

function quote(text: string): string {
  return NEEDS_ESCAPE.test(text) ? JSON.stringify(text) : `"${text}"`;
}

function formatArray(items: readonly Json[]): string {
  let text = '[';
  for (let index = 0; index < items.length; index++) {
    if (index > 0) text += ',';
    text += formatJson(items[index] ?? null);
  }
  return text + ']';
}

function formatObject(object: JsonObject): string {
  let text = '{';
  for (const key of Object.keys(object)) {
    if (text.length > 1) text += ',';
    text += quote(key) + ':' + formatJson(object[key] ?? null);
  }
  return text + '}';
}

/** A parsed value of unknown type as an object; undefined if it is none. */
export function asObject(value: unknown): JsonObject | undefined {
  return isJson(value) && isObject(value) ? value : undefined;
}

/** Narrows the type: parsed text is JSON or undefined. */
function isJson(value: unknown): value is Json {
  return value !== undefined;
}

/** The object in a field; empty if the field has none. */
export function objectIn(object: JsonObject, name: string): JsonObject {
  const value = object[name];
  return isObject(value) ? value : {};
}

export function withoutFields(object: JsonObject, names: readonly string[]): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !names.includes(name)));
}
