import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';

import { sameAttributes, type AllocationAttributes } from '../attributes.js';
import type { Block, BlockOwner } from '../block.js';
import { cutHandle } from '../names.js';
import {
  field,
  isAbsent,
  keepTime,
  readCount,
  readList,
  readObject,
  readOptionalText,
  readPrefix,
  readTextMap,
  readTime,
  readUint64,
  unreadable,
  Unreadable,
  type Field,
} from './fields.js';
import { formatJson, isObject, parseJson, type Json, type JsonObject } from './json.js';

/** Calico's AllocationBlock (libcalico-go/lib/backend/model/block.go). */

/** The largest block that Calico allows has 4096 addresses. */
const MAX_BLOCK_BITS = 12;

export function decodeBlock(raw: JsonObject): Block {
  const prefix = readPrefix(field(raw, 'cidr'));
  const hostBits = familyBits(prefix.family) - prefix.length;
  if (hostBits > MAX_BLOCK_BITS) throw unreadable(field(raw, 'cidr'), 'a block of at most 4096 addresses');
  const size = 2 ** hostBits;
  const claimTime = field(raw, 'affinity_claim_time');
  const sequenceNumber = field(raw, 'sequenceNumber');
  const attributes = readList(field(raw, 'attributes')).map(decodeAttributes);
  const block: Block = {
    prefix,
    owner: decodeOwner(raw),
    claimTimeMs: isAbsent(claimTime) ? undefined : readTime(claimTime),
    allocations: decodeAllocations(raw, size, attributes.length),
    unallocated: readList(field(raw, 'unallocated')).map((ordinal) => readCount(ordinal, size - 1)),
    attributes,
    sequenceNumber: isAbsent(sequenceNumber) ? 0n : readUint64(sequenceNumber),
    sequenceNumbers: decodeSequenceNumbers(raw, size),
  };
  checkPartition(block);
  return block;
}

function decodeOwner(raw: JsonObject): BlockOwner | undefined {
  const text = readOptionalText(field(raw, 'affinity'));
  if (text === undefined) {
    const name = readOptionalText(field(raw, 'hostAffinity'));
    return name ? { kind: 'host', name } : undefined;
  }
  const colon = text.indexOf(':');
  const kind = text.slice(0, colon);
  const name = text.slice(colon + 1);
  if ((kind !== 'host' && kind !== 'virtual') || name === '')
    throw unreadable(field(raw, 'affinity'), 'host:<node> or virtual:<owner>');
  return { kind, name };
}

function decodeAllocations(raw: JsonObject, size: number, attributeCount: number): (number | null)[] {
  const source = field(raw, 'allocations');
  const list = readList(source);
  if (list.length !== size)
    throw new Unreadable(`allocations has ${list.length} entries; the block has ${size} addresses`);
  return list.map((index) => (index.value === null ? null : readCount(index, attributeCount - 1)));
}

function decodeAttributes(source: Field): AllocationAttributes {
  const { path } = source;
  const raw = readObject(source);
  const releasedAt = field(raw, 'releasedAt', path);
  const handleId = readOptionalText(field(raw, 'handle_id', path));
  const alternateOwner = readTextMap(field(raw, 'alternateOwnerAttrs', path));
  const attributes = {
    handleId: handleId === undefined ? undefined : cutHandle(handleId),
    owner: readTextMap(field(raw, 'secondary', path)),
    ...(Object.keys(alternateOwner).length > 0 && { alternateOwner }),
    releasedAtMs: isAbsent(releasedAt) ? undefined : readTime(releasedAt),
  };
  keepSource(attributes, raw);
  return attributes;
}

const ORDINAL = /^(0|[1-9]\d{0,3})$/;

function decodeSequenceNumbers(raw: JsonObject, size: number): (bigint | null)[] {
  const source = field(raw, 'sequenceNumberForAllocation');
  const object = readObject(source);
  const numbers: (bigint | null)[] = Array.from({ length: size }, () => null);
  for (const text of Object.keys(object)) {
    const entry = field(object, text, source.path);
    if (!ORDINAL.test(text) || Number(text) >= size)
      throw new Unreadable(`${entry.path} is not an address of the block`);
    numbers[Number(text)] = readUint64(entry);
  }
  return numbers;
}

/** Every ordinal is either allocated or listed once as free, as `calicoctl ipam check` requires. */
function checkPartition({ allocations, unallocated }: Block): void {
  const free = new Set(unallocated);
  if (free.size !== unallocated.length) throw new Unreadable('unallocated lists an address twice');
  allocations.forEach((index, ordinal) => {
    if (index !== null && free.has(ordinal)) throw new Unreadable(`address ${ordinal} is both allocated and free`);
    if (index === null && !free.has(ordinal)) throw new Unreadable(`address ${ordinal} is neither allocated nor free`);
  });
}

/**
 * Cache of the stored form of attributes: their source JSON if it has unknown fields, or their text after they were
 * written. A block is written whole with every allocation, and all but one of its attributes are unchanged.
 */
const attributeForms = new WeakMap<AllocationAttributes, JsonObject | string>();

/** The fields that Podwire reads and writes. Unknown fields belong to other releases and are kept. */
const KNOWN_FIELDS = new Set([
  'cidr',
  'affinity',
  'hostAffinity',
  'affinity_claim_time',
  'allocations',
  'unallocated',
  'attributes',
  'deleted',
  'sequenceNumber',
  'sequenceNumberForAllocation',
]);
const INSPECTED_FIELDS = new Set(['affinity_claim_time', 'deleted']);

/** The fields that a rewrite copies or inspects. */
export function unknownFields(raw: JsonObject): JsonObject {
  const kept = Object.entries(raw).filter(([name]) => !KNOWN_FIELDS.has(name) || INSPECTED_FIELDS.has(name));
  return Object.fromEntries(kept);
}

/** The stored state before a block is written: the block if there is one, and its unknown fields. */
export interface StoredBlock {
  readonly value: Block | undefined;
  readonly raw: JsonObject;
}

/** The block's JSON text, in the order of fields that Calico's encoder has. */
export function formatBlock(block: Block, { value: before, raw }: StoredBlock): string {
  const written = { block, before };
  const attributes = block.attributes.map((entry) => attributesText(entry, written));
  const numbers: string[] = [];
  for (const [ordinal, number] of block.sequenceNumbers.entries())
    if (number !== null) numbers.push(`"${ordinal}":${number}`);
  return [
    formatHead(block, raw),
    `"allocations":${JSON.stringify(block.allocations)}`,
    `"unallocated":${JSON.stringify(block.unallocated)}`,
    `"attributes":[${attributes.join(',')}]`,
    `"deleted":${formatJson(raw.deleted ?? false)}`,
    `"sequenceNumber":${block.sequenceNumber}`,
    `"sequenceNumberForAllocation":{${numbers.join(',')}}${formatTail(raw)}`,
  ].join(',');
}

/** The text before the allocations. */
function formatHead({ prefix, owner, claimTimeMs }: Block, raw: JsonObject): string {
  const affinity = owner ? formatJson(`${owner.kind}:${owner.name}`) : 'null';
  const head = `{"cidr":"${formatPrefix(prefix)}","affinity":${affinity}`;
  if (claimTimeMs === undefined) return head;
  return `${head},"affinity_claim_time":${formatJson(keepTime(claimTimeMs, raw.affinity_claim_time))}`;
}

/** The unknown fields and the end of the text. */
function formatTail(raw: JsonObject): string {
  let text = '';
  for (const name of Object.keys(raw))
    if (!KNOWN_FIELDS.has(name)) text += `,${formatJson(name)}:${formatJson(raw[name] ?? null)}`;
  return text + '}';
}

const ATTRIBUTE_FIELDS = new Set(['handle_id', 'secondary', 'alternateOwnerAttrs', 'releasedAt']);

/** Keeps the source JSON of attributes if their values do not reproduce it. */
function keepSource(value: AllocationAttributes, raw: JsonObject): void {
  const isMadeFrom = Object.keys(raw).every((name) => ATTRIBUTE_FIELDS.has(name) && raw[name] !== null);
  if (!isMadeFrom) attributeForms.set(value, raw);
}

/** The block that attributes are written for. */
interface AttributesInput {
  readonly block: Block;
  /** The stored block. */
  readonly before: Block | undefined;
}

/** The text of attributes. A new entry with the content of a stored one takes over its unknown fields. */
function attributesText(value: AllocationAttributes, { block, before }: AttributesInput): string {
  const known = cachedText(value);
  if (known !== undefined) return known;
  const equal = before?.attributes.find((stored) => sameAttributes(stored, value));
  const unknown = equal ? undefined : unknownFieldsBefore(value, block, before);
  const encoded = encodeAttributes(value);
  // JSON.stringify returns a flat string. Concatenation returns a tree that each write traverses again.
  const made = unknown ? formatJson({ ...encoded, ...unknown }) : JSON.stringify(encoded);
  const text = (equal && cachedText(equal)) ?? made;
  attributeForms.set(value, text);
  return text;
}

function cachedText(value: AllocationAttributes): string | undefined {
  const known = attributeForms.get(value);
  if (known === undefined || typeof known === 'string') return known;
  const text = formatJson(known);
  attributeForms.set(value, text);
  return text;
}

/** The unknown fields that the entry of an allocation had before it was changed. */
function unknownFieldsBefore(
  value: AllocationAttributes,
  block: Block,
  before: Block | undefined,
): JsonObject | undefined {
  if (!before || value.releasedAtMs !== undefined) return undefined;
  const ordinal = block.allocations.indexOf(block.attributes.indexOf(value));
  const stored = before.attributes[before.allocations[ordinal] ?? -1];
  const isSame = before.sequenceNumbers[ordinal] === block.sequenceNumbers[ordinal];
  if (!stored || !isSame || stored.handleId !== value.handleId) return undefined;
  const raw = parseJson(cachedText(stored) ?? '{}');
  const fields = isObject(raw) ? Object.entries(raw).filter(([name]) => !ATTRIBUTE_FIELDS.has(name)) : [];
  return fields.length > 0 ? Object.fromEntries(fields) : undefined;
}

function encodeAttributes({ handleId, owner, alternateOwner, releasedAtMs }: AllocationAttributes): JsonObject {
  const encoded: Record<string, Json> = {};
  if (handleId !== undefined) encoded.handle_id = handleId;
  if (Object.keys(owner).length > 0) encoded.secondary = owner;
  if (alternateOwner !== undefined) encoded.alternateOwnerAttrs = alternateOwner;
  if (releasedAtMs !== undefined) encoded.releasedAt = keepTime(releasedAtMs, undefined);
  return encoded;
}
