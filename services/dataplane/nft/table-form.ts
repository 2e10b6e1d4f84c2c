import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { compareTexts } from '@podwire/shared/words/order';

import { isList, isObject, type Json, type JsonObject, type NftSet } from './table.js';

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
    const set = object.set ?? object.map;
    if ('rule' in object) rules.push(textOf(object));
    else if (isObject(set)) {
      const { elem = [], ...rest } = set;
      structure.push(textOf({ ...object, [object.set ? 'set' : 'map']: rest }));
      // Sets with a timeout are filled by rules.
      elements.push(`${textOf(rest.name ?? null)}: ${'timeout' in rest ? '' : elementsText(elem)}`);
    } else structure.push(textOf(object));
  }
  // The order of rules within a chain is significant; the kernel orders other objects.
  const byChain = rules.map((text, position) => ({ text, chain: /"chain":"[^"]*"/.exec(text)?.[0] ?? '', position }));
  const ordered = byChain.toSorted((a, b) => compareTexts(a.chain, b.chain) || a.position - b.position);
  return {
    structure: [...structure.toSorted(compareTexts), ...ordered.map(({ text }) => text)].join('\n'),
    elements: elements.toSorted(compareTexts).join('\n'),
  };
}

/** The elements of a set or map among a table's objects, as text: one text for each element, like {@link elementTexts}. */
export function listedElements(objects: readonly JsonObject[], name: string): ReadonlySet<string> {
  const sets = objects.map((object) => object.set ?? object.map).filter((set) => set !== undefined);
  const set = sets.filter(isObject).find((each) => each.name === name);
  return new Set(elementTexts(set?.elem ?? []));
}

/** Whether a table's objects have a set or map with exactly these elements. */
export function hasElements(objects: readonly JsonObject[], { name, elements }: NftSet): boolean {
  const listed = listedElements(objects, name);
  return listed.size === elements.length && elementTexts(elements).every((text) => listed.has(text));
}

/** Elements without ranges, as text. */
export function elementTexts(elements: Json): string[] {
  return (isList(elements) ? elements : [elements]).map(fieldsText);
}

export interface AddressRange {
  readonly family: Family;
  readonly first: bigint;
  readonly last: bigint;
}

function elementsText(elements: Json): string {
  const list = isList(elements) ? elements : [elements];
  const ranges: AddressRange[] = [];
  const texts: string[] = [];
  for (const element of list) {
    const range = rangeOf(element);
    if (range) ranges.push(range);
    else texts.push(fieldsText(element));
  }
  return [...mergeRanges(ranges).map(rangeText), ...texts.toSorted(compareTexts)].join(', ');
}

function fieldsText(element: Json): string {
  // A pair of key and value of a map.
  if (isList(element)) return element.map(fieldsText).join(' : ');
  const fields = isObject(element) && isList(element.concat) ? element.concat : undefined;
  if (!fields) return textOfField(element);
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
