import { parseAddress } from '@podwire/shared/net/address';
import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';

import { isArray, isObject, type Json, type JsonObject } from './json.js';

/** Why a stored text is not a valid record of its key. Converted into STORE_CORRUPT where the key is known. */
export class Unreadable extends Error {
  override readonly name = 'Unreadable';
}

/** A field to read: its value, and its path for error texts. */
export interface Field {
  readonly path: string;
  readonly value: Json | undefined;
}

export function field(object: JsonObject, name: string, parent = ''): Field {
  const value = Object.hasOwn(object, name) ? object[name] : undefined;
  return { path: parent === '' ? name : `${parent}.${name}`, value };
}

/** Go writes empty optional fields as null or omits them; both are read as absent. */
export function isAbsent({ value }: Field): boolean {
  return value === undefined || value === null;
}

export function unreadable({ path, value }: Field, expected: string): Unreadable {
  const found = value === undefined ? 'is missing' : `is ${describe(value)}`;
  return new Unreadable(`${path} ${found}; expected ${expected}`);
}

function describe(value: Json): string {
  if (value === null) return 'null';
  if (isArray(value)) return 'a list';
  if (typeof value === 'object') return 'an object';
  return typeof value === 'string' ? JSON.stringify(value.slice(0, 80)) : String(value);
}

export function readText(source: Field): string {
  if (typeof source.value !== 'string') throw unreadable(source, 'a text');
  return source.value;
}

export function readOptionalText(source: Field): string | undefined {
  return isAbsent(source) ? undefined : readText(source);
}

export function readFlag(source: Field): boolean {
  if (isAbsent(source)) return false;
  if (typeof source.value !== 'boolean') throw unreadable(source, 'true or false');
  return source.value;
}

export function readObject(source: Field): JsonObject {
  if (isAbsent(source)) return {};
  if (!isObject(source.value)) throw unreadable(source, 'an object');
  return source.value;
}

export function readList(source: Field): readonly Field[] {
  if (isAbsent(source)) return [];
  if (!isArray(source.value)) throw unreadable(source, 'a list');
  return source.value.map((value, index) => ({ path: `${source.path}[${index}]`, value }));
}

export function readTextMap(source: Field): Record<string, string> {
  const object = readObject(source);
  return Object.fromEntries(
    Object.keys(object).map((name) => [name, readText(field(object, name, source.path))] as const),
  );
}

/** An integer from 0 to `largest`. */
export function readCount(source: Field, largest: number): number {
  const { value } = source;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > largest)
    throw unreadable(source, `an integer from 0 to ${largest}`);
  return value;
}

const LARGEST_UINT64 = (1n << 64n) - 1n;

/** An unsigned 64-bit integer. */
export function readUint64(source: Field): bigint {
  const { value } = source;
  const integer = typeof value === 'number' && Number.isSafeInteger(value) ? BigInt(value) : value;
  if (typeof integer !== 'bigint' || integer < 0n || integer > LARGEST_UINT64)
    throw unreadable(source, 'an unsigned 64-bit integer');
  return integer;
}

export function readPrefix(source: Field): Prefix {
  const prefix = internPrefix(readText(source));
  if (!prefix) throw unreadable(source, 'a CIDR without host bits');
  return prefix;
}

/** An address or a CIDR of full length, as in Calico's `ipNetworks`. */
export function readHostAddress(source: Field): Prefix {
  const address = parseHostAddress(readText(source));
  if (!address) throw unreadable(source, 'an address');
  return address;
}

/** @returns undefined for a text that is neither an address nor a CIDR of full length */
export function parseHostAddress(text: string): Prefix | undefined {
  const parsed = parsePrefix(text);
  const prefix = parsed.ok ? parsed.prefix : undefined;
  const address = prefix ?? parseAddress(text);
  const bits = address?.family === 4 ? 32 : 128;
  if (!address || (prefix && prefix.length !== bits)) return undefined;
  return { family: address.family, value: address.value, length: bits };
}

const RFC3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

/** A time as RFC 3339 writes it. @returns epoch milliseconds */
export function readTime(source: Field): number {
  const text = readText(source);
  const timeMs = RFC3339.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isNaN(timeMs)) throw unreadable(source, 'a time such as 2026-01-31T12:00:00Z');
  return timeMs;
}

/** Cache: records that are written or read in sequence often have the same time. */
let lastTime = { timeMs: Number.NaN, text: '' };

/** Calico's times have whole seconds; fractions are dropped. */
function formatTime(timeMs: number): string {
  if (timeMs !== lastTime.timeMs) {
    const text = new Date(Math.floor(timeMs / 1000) * 1000).toISOString().replace('.000Z', 'Z');
    lastTime = { timeMs, text };
  }
  return lastTime.text;
}

/** Text of a time. Keeps an equal stored one, whose precision and zone its writer chose. */
export function keepTime(timeMs: number, stored: Json | undefined): string {
  const same = typeof stored === 'string' && Date.parse(stored) === timeMs;
  return same ? stored : formatTime(timeMs);
}

/** Text of the creation time. Null, as Go writes it, where the record never had one and is read as 0. */
export function keepCreateTime(timeMs: number, stored: Json | undefined): string | null {
  return timeMs === 0 && (stored ?? null) === null ? null : keepTime(timeMs, stored);
}

/** Enough for a cluster of 5,000 nodes with three blocks each. */
const MAX_INTERNED_PREFIXES = 20_000;

const internedPrefixes = new Map<string, Prefix>();

/**
 * Parses a CIDR like {@link parsePrefix}. Dozens of records name the same block and share one value, which takes a
 * tenth of the time and memory.
 * @returns undefined when the text is not a CIDR or has host bits
 */
function internPrefix(text: string): Prefix | undefined {
  const found = internedPrefixes.get(text);
  if (found) return found;
  const parsed = parsePrefix(text);
  if (!parsed.ok) return undefined;
  if (internedPrefixes.size >= MAX_INTERNED_PREFIXES) internedPrefixes.clear();
  internedPrefixes.set(text, parsed.prefix);
  return parsed.prefix;
}

/** A test of a field's value, or the tests of an object's fields. */
export type FieldChecks = ((value: Json) => boolean) | { readonly [name: string]: FieldChecks };

export const anyValue = (): boolean => true;
export const exactly = (expected: Json) => (value: Json) => value === expected;

/** A time as this release writes it. */
export const wholeSeconds = (value: Json): boolean =>
  typeof value === 'string' && /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(value);

/** Whether a value has no field without a check, and each field passes its check. */
export function hasOnly(value: Json, checks: FieldChecks): boolean {
  if (typeof checks === 'function') return checks(value);
  if (!isObject(value)) return false;
  for (const name of Object.keys(value)) {
    const check = Object.hasOwn(checks, name) ? checks[name] : undefined;
    if (check === undefined || !hasOnly(value[name] ?? null, check)) return false;
  }
  return true;
}

/** The stored state before a rewrite: the value and its JSON. */
export interface PreviousState<Value> {
  readonly value: Value;
  readonly raw: JsonObject;
}
