import { formatAddress, type Family } from '@podwire/shared/net/address';
import { comparePrefixes, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

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

/** Type of a field of an element (nft(8), DATA TYPES). */
export type FieldType = 'ifname' | 'ipv4_addr' | 'ipv6_addr' | 'inet_proto' | 'inet_service';

/** A named set or map without its elements. */
export interface SetDefinition {
  readonly name: string;
  /** Several for a concatenation. */
  readonly type: FieldType | readonly FieldType[];
  /** Whether its elements are ranges. */
  readonly interval: boolean;
  /** Type of the values of a map; `verdict`: {@link jumpTo}. */
  readonly valueType?: FieldType | 'verdict';
  /** Rules add elements, which expire. Such elements do not count in comparisons. */
  readonly filledByRules?: { readonly sizeCount: number; readonly timeoutSeconds: number };
}

/**
 * A set or map. Elements of address sets are disjoint prefixes; in concatenations, disjoint per link. Elements of maps are pairs of
 * key and value.
 */
export interface NftSet extends SetDefinition {
  readonly elements: readonly Json[];
}

/** A chain with its rules, each a list of expressions. */
export interface NftChain {
  readonly name: string;
  /** Hook; undefined for a chain that is only jumped to. */
  readonly hook: { readonly type: string; readonly name: string; readonly priority: number } | undefined;
  readonly rules: readonly (readonly JsonObject[])[];
}

/** A whole table. Chains come after the targets of their jumps. */
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

/** The same addresses as disjoint prefixes, as interval sets require; sorted. */
export function outermost(prefixes: readonly Prefix[]): Prefix[] {
  const kept: Prefix[] = [];
  // A prefix follows its containing prefixes in sorted order, so comparing with the last kept one is enough.
  for (const prefix of prefixes.toSorted(comparePrefixes)) {
    const last = kept.at(-1);
    if (!last || !prefixContains(last, prefix)) kept.push(prefix);
  }
  return kept;
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

/** Passes the packet to a chain; the next rule follows when that returns. */
export function jumpTo(target: string): JsonObject {
  return { jump: { target } };
}

/** Adds an element to a set, or renews its timeout, and applies a statement of its own to it: a rate limit. */
export function updateSet(set: string, elem: Json, ...stmt: readonly JsonObject[]): JsonObject {
  return { set: { op: 'update', elem, set: `@${set}`, ...(stmt.length > 0 ? { stmt } : {}) } };
}

/** nftables' name for the addresses of a family, and for its packets. */
export const ADDRESS_TYPE: Readonly<Record<Family, 'ipv4_addr' | 'ipv6_addr'>> = { 4: 'ipv4_addr', 6: 'ipv6_addr' };
export const PROTOCOL: Readonly<Record<Family, 'ip' | 'ip6'>> = { 4: 'ip', 6: 'ip6' };

/** NF_IP_PRI_FILTER: packet filtering, after the translation of destinations. */
export const FILTER_PRIORITY = 0;

/** End of a rule that counts and drops packets. */
export const COUNTED_DROP: readonly JsonObject[] = [{ counter: { packets: 0, bytes: 0 } }, { drop: null }];

/** Elements to delete from a set or map, and to add to it afterwards. */
export interface ElementsChange {
  readonly set: SetDefinition;
  readonly deleted: readonly Json[];
  readonly added: readonly Json[];
}

/** The changes of elements that lead from a table to another one; undefined if the tables differ in more than elements. */
export function elementChanges(from: NftTable, to: NftTable): readonly ElementsChange[] | undefined {
  if (structureOf(from) !== structureOf(to)) return undefined;
  return to.sets.flatMap((set, position) => {
    const before = from.sets[position]?.elements ?? [];
    const change = { set, deleted: without(before, set.elements), added: without(set.elements, before) };
    return change.deleted.length + change.added.length > 0 ? [change] : [];
  });
}

function structureOf({ sets, ...rest }: NftTable): string {
  return JSON.stringify({ ...rest, sets: sets.map((set) => ({ ...set, elements: [] })) });
}

function without(elements: readonly Json[], excluded: readonly Json[]): readonly Json[] {
  if (excluded.length === 0) return elements;
  const texts = new Set(excluded.map((element) => JSON.stringify(element)));
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
  const setObjects = sets.map(({ name: set, type, interval, valueType, elements, filledByRules }) => ({
    [valueType ? 'map' : 'set']: {
      ...within,
      name: set,
      type,
      ...(valueType ? { map: valueType } : {}),
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
