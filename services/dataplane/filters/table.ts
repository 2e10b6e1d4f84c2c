import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

/** JSON values, as `nft -j` reads and writes them (libnftables-json(5)). */
export type Json = null | boolean | number | string | readonly Json[] | JsonObject;

export interface JsonObject {
  readonly [key: string]: Json;
}

/** A table's name: `inet podwire`. */
export interface TableName {
  readonly family: 'ip' | 'ip6' | 'inet';
  readonly name: string;
}

/** A filter chain of any program that packets of pods pass on their way through the node. */
export interface BaseChain {
  readonly table: TableName;
  readonly name: string;
  readonly hook: 'prerouting' | 'forward' | 'postrouting';
}

/** A named set. Elements of address sets are disjoint prefixes; in concatenations, disjoint per link. */
export interface NftSet {
  readonly name: string;
  /** `ipv4_addr`, `ifname`, …; several for a concatenation. */
  readonly type: string | readonly string[];
  /** Whether its elements are ranges. */
  readonly interval: boolean;
  readonly elements: readonly Json[];
  /** Rules add elements, which expire. Such elements do not count in comparisons. */
  readonly filledByRules?: { readonly sizeCount: number; readonly timeoutSeconds: number };
}

/** A chain with its rules, each a list of expressions. */
export interface NftChain {
  readonly name: string;
  /** Undefined for a chain that is only jumped to. */
  readonly hook: { readonly type: string; readonly name: string; readonly priority: number } | undefined;
  readonly rules: readonly (readonly JsonObject[])[];
}

/** A whole table. Chains come after those that they jump to. */
export interface NftTable extends TableName {
  readonly sets: readonly NftSet[];
  readonly chains: readonly NftChain[];
}

/** One command of a transaction: `{ "add": { "table": … } }`. */
export type NftCommand =
  { readonly add: JsonObject } | { readonly insert: JsonObject } | { readonly delete: JsonObject };

export function formatTableName({ family, name }: TableName): string {
  return `${family} ${name}`;
}

/** A prefix as an element or an operand. */
export function prefixJson(prefix: Prefix): Json {
  return { prefix: { addr: formatAddress(prefix), len: prefix.length } };
}

/** An element that joins several fields: a link's name and a prefix. */
export function concatJson(...fields: readonly Json[]): Json {
  return { concat: fields };
}

/** `match LEFT OPERATOR RIGHT`. */
export function match(left: Json, operator: '==' | '!=', right: Json): JsonObject {
  return { match: { op: operator, left, right } };
}

export function payload(protocol: 'ip' | 'ip6', field: 'saddr' | 'daddr'): Json {
  return { payload: { protocol, field } };
}

export function meta(key: string): Json {
  return { meta: { key } };
}

/** Adds an element to a set, or renews its timeout, and applies a statement of its own to it: a rate limit. */
export function updateSet(set: string, elem: Json, ...stmt: readonly JsonObject[]): JsonObject {
  return { set: { op: 'update', elem, set: `@${set}`, ...(stmt.length > 0 ? { stmt } : {}) } };
}

/** nftables' name for the addresses of a family, and for its packets. */
export const ADDRESS_TYPE: Readonly<Record<Family, string>> = { 4: 'ipv4_addr', 6: 'ipv6_addr' };
export const PROTOCOL: Readonly<Record<Family, 'ip' | 'ip6'>> = { 4: 'ip', 6: 'ip6' };

/** NF_IP_PRI_FILTER: packet filtering, after the translation of destinations. */
export const FILTER_PRIORITY = 0;

/** End of a rule that counts and drops packets. */
export const COUNTED_DROP: readonly JsonObject[] = [{ counter: { packets: 0, bytes: 0 } }, { drop: null }];

/** Wanted and previous elements of a table's set. */
interface SetChange {
  readonly name: string;
  readonly from: readonly Json[];
  readonly to: readonly Json[];
}

/** The commands that change some elements of a table's sets to others; empty when equal. */
export function elementsChange({
  table,
  sets,
}: {
  readonly table: TableName;
  readonly sets: readonly SetChange[];
}): readonly NftCommand[] {
  const element = (name: string, elem: readonly Json[]): readonly JsonObject[] =>
    elem.length === 0 ? [] : [{ element: { family: table.family, table: table.name, name, elem } }];
  // Deletions first: intervals of one set may not overlap.
  return [
    ...sets.flatMap(({ name, from, to }) => element(name, without(from, to)).map((each) => ({ delete: each }))),
    ...sets.flatMap(({ name, from, to }) => element(name, without(to, from)).map((each) => ({ add: each }))),
  ];
}

function without(elements: readonly Json[], others: readonly Json[]): readonly Json[] {
  const texts = new Set(others.map((other) => JSON.stringify(other)));
  return elements.filter((element) => !texts.has(JSON.stringify(element)));
}

/** The commands that replace a table in one transaction, regardless of its state (`nft flush`, `nft add`, …). */
export function replacement(table: NftTable): readonly NftCommand[] {
  return [...removal(table), ...objectsOf(table).map((object): NftCommand => ({ add: object }))];
}

/** The commands that delete a table if it exists: adding it first makes the deletion succeed. */
export function removal({ family, name }: TableName): readonly NftCommand[] {
  const table = { table: { family, name } };
  return [{ add: table }, { delete: table }];
}

/** The objects of a table in the form in which `nft -j list table` shows them (nftables 1.0.6). */
export function objectsOf({ family, name, sets, chains }: NftTable): readonly JsonObject[] {
  const within = { family, table: name };
  const setObjects = sets.map(({ name: set, type, interval, elements, filledByRules }) => ({
    set: {
      ...within,
      name: set,
      type,
      ...(interval ? { flags: ['interval'] } : {}),
      ...(filledByRules
        ? { size: filledByRules.sizeCount, timeout: filledByRules.timeoutSeconds, flags: ['timeout'] }
        : {}),
      // An empty list is a syntax error.
      ...(elements.length > 0 ? { elem: elements } : {}),
    },
  }));
  const chainObjects = chains.map(({ name: chain, hook }) => ({
    chain: {
      ...within,
      name: chain,
      ...(hook ? { type: hook.type, hook: hook.name, prio: hook.priority, policy: 'accept' } : {}),
    },
  }));
  const rules = chains.flatMap((chain) =>
    chain.rules.map((expr) => ({ rule: { ...within, chain: chain.name, expr } })),
  );
  return [{ table: { family, name } }, ...setObjects, ...chainObjects, ...rules];
}

export function isList(value: Json | undefined): value is readonly Json[] {
  return Array.isArray(value);
}

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !isList(value);
}

/** The form for comparing two tables. Ignores counters, handles and the order of unordered objects. */
interface TableForm {
  /** Everything except the elements of sets, as text. */
  readonly structure: string;
  /** The elements of all sets, as text: addresses by the ranges that they cover, however split. */
  readonly elements: string;
}

/** The form of a table's objects, wanted or listed by the kernel. */
export function formOf(objects: readonly JsonObject[]): TableForm {
  const structure: string[] = [];
  const rules: string[] = [];
  const elements: string[] = [];
  for (const object of objects) {
    const set = object.set;
    if ('rule' in object) rules.push(textOf(object));
    else if (isObject(set)) {
      const { elem = [], ...rest } = set;
      structure.push(textOf({ set: rest }));
      // Sets with a timeout are filled by rules.
      elements.push(`${textOf(rest.name ?? null)}: ${'timeout' in rest ? '' : elementsText(elem)}`);
    } else structure.push(textOf(object));
  }
  // The order of rules within a chain is significant; the kernel determines that of other objects.
  const byChain = rules.map((text, position) => ({ text, chain: /"chain":"[^"]*"/.exec(text)?.[0] ?? '', position }));
  const ordered = byChain.toSorted((a, b) => compareTexts(a.chain, b.chain) || a.position - b.position);
  return {
    structure: [...structure.toSorted(compareTexts), ...ordered.map(({ text }) => text)].join('\n'),
    elements: elements.toSorted(compareTexts).join('\n'),
  };
}

export interface AddressRange {
  readonly family: Family;
  readonly first: bigint;
  readonly last: bigint;
}

function elementsText(elements: Json): string {
  const list = isList(elements) ? elements : [elements];
  const ranges: AddressRange[] = [];
  const others: string[] = [];
  for (const element of list) {
    const range = rangeOf(element);
    if (range) ranges.push(range);
    else others.push(fieldsText(element));
  }
  return [...mergeRanges(ranges).map(rangeText), ...others.toSorted(compareTexts)].join(', ');
}

function fieldsText(element: Json): string {
  const fields = isObject(element) && isList(element.concat) ? element.concat : undefined;
  if (!fields) return textOf(element);
  return fields.map(textOfField).join(' . ');
}

function textOfField(field: Json): string {
  const range = rangeOf(field);
  return range ? rangeText(range) : textOf(field);
}

/** Merges ranges that touch or overlap; sorted. */
function mergeRanges(ranges: readonly AddressRange[]): AddressRange[] {
  const result: AddressRange[] = [];
  for (const range of ranges.toSorted((a, b) => a.family - b.family || compareNumbers(a.first, b.first))) {
    const last = result.at(-1);
    if (last?.family === range.family && range.first <= last.last + 1n) {
      result[result.length - 1] = { ...last, last: range.last > last.last ? range.last : last.last };
    } else result.push(range);
  }
  return result;
}

export function rangeOf(element: Json): AddressRange | undefined {
  if (typeof element === 'string') {
    const address = parseAddress(element);
    return address && { family: address.family, first: address.value, last: address.value };
  }
  if (!isObject(element)) return undefined;
  return isObject(element.prefix) ? rangeOfPrefix(element.prefix) : rangeOfEnds(element.range);
}

function rangeOfPrefix({ addr, len }: JsonObject): AddressRange | undefined {
  const start = typeof addr === 'string' ? rangeOf(addr) : undefined;
  if (!start || typeof len !== 'number') return undefined;
  const size = 1n << BigInt(familyBits(start.family) - len);
  return { ...start, last: start.first + size - 1n };
}

function rangeOfEnds(ends: Json | undefined): AddressRange | undefined {
  if (!isList(ends)) return undefined;
  const [first, last] = ends.map((end) => rangeOf(end));
  return first && last?.family === first.family ? { ...first, last: last.last } : undefined;
}

function rangeText({ family, first, last }: AddressRange): string {
  return `${formatAddress({ family, value: first })}-${formatAddress({ family, value: last })}`;
}

/** Values that the kernel assigns or counts: ignored in comparisons. */
const VOLATILE: readonly string[] = ['handle', 'packets', 'bytes'];

/** JSON with sorted keys. */
function textOf(value: Json): string {
  if (isList(value)) return `[${value.map(textOf).join(',')}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const entries = Object.entries(value)
    .filter(([key]) => !VOLATILE.includes(key))
    .toSorted(([a], [b]) => compareTexts(a, b));
  return `{${entries.map(([key, inner]) => `${JSON.stringify(key)}:${textOf(inner)}`).join(',')}}`;
}

function compareNumbers(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/**
 * The node's nftables. Implementations: the `nft` program, and memory (the fake); both pass `testing/nft-contract.ts`.
 *
 * Every method fails with KERNEL_UNSUPPORTED when the program or the kernel feature is missing, and with KERNEL_REFUSED when
 * nftables refuse or time out; both carry its own text.
 */
export interface Nft {
  /**
   * Reads one table (`nft -j -n list table FAMILY NAME`): protocols as numbers.
   * Result: its objects as nft lists them, complete; undefined when there is no such table. Idempotent.
   */
  read(table: TableName): Promise<readonly JsonObject[] | undefined>;

  /** Reads the filter chains of all tables that forwarded packets pass (`nft list chains`). Idempotent. */
  forwardChains(): Promise<readonly BaseChain[]>;

  /**
   * Applies commands as one transaction (`nft -j -f -`).
   * Result: all of it is in force, or none when it fails. As idempotent as the commands: adding an existing object succeeds,
   * deleting a missing one fails.
   */
  apply(commands: readonly NftCommand[]): Promise<void>;
}
