import { formatPrefix } from '@podwire/shared/net/prefix';

import type { AllocationAttributes, Block, Ordinal } from '../../allocator/records.js';
import { sameAttributes } from '../../records/attributes.js';
import { keepTime } from '../../records/json/fields.js';
import { formatJson, isObject, parseJson, type Json, type JsonObject } from '../../records/json/json.js';

/** The parts of a block's JSON text. */

/** What Podwire reads and writes of a block. All else is another release's, and stays as it is. */
const KNOWN = new Set([
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
const LOOKED_AT = new Set(['affinity_claim_time', 'deleted']);

/** The fields that a rewrite takes over, and those it looks at. */
export function unknownFields(raw: JsonObject): JsonObject {
  const kept = Object.entries(raw).filter(([name]) => !KNOWN.has(name) || LOOKED_AT.has(name));
  return Object.fromEntries(kept);
}

/** What is stored before a block is written: the block if there is one, and its fields of others. */
export interface StoredBlock {
  readonly value: Block | undefined;
  readonly raw: JsonObject;
}

/** The block's JSON text, in the order of fields that Calico's encoder has. */
export function formatBlock(block: Block, { value: before, raw }: StoredBlock): string {
  const writing = { block, before, gone: before?.attributes ?? [] };
  let attributes = '';
  for (const entry of block.attributes) {
    if (attributes !== '') attributes += ',';
    attributes += formOfWritten(entry, writing);
  }
  let numbers = '';
  for (let ordinal = 0; ordinal < block.sequenceNumbers.length; ordinal++) {
    const number = formatNumber(block.sequenceNumbers[ordinal] ?? null, ordinal);
    if (number !== '') numbers += numbers === '' ? number : `,${number}`;
  }
  let text = formatHead(block, raw);
  text += `,"allocations":${JSON.stringify(block.allocations)},"unallocated":${JSON.stringify(block.unallocated)}`;
  text += `,"attributes":[${attributes}]${formatMiddle(raw)}${block.sequenceNumber}`;
  return `${text},"sequenceNumberForAllocation":{${numbers}}${formatTail(raw)}`;
}

/** Empty for an address that is free. */
export function formatNumber(number: bigint | null, ordinal: Ordinal): string {
  return number === null ? '' : `"${ordinal}":${number}`;
}

/** From the beginning to where the allocations come. */
export function formatHead({ prefix, owner, claimTimeMs }: Block, raw: JsonObject): string {
  const affinity = owner ? formatJson(`${owner.kind}:${owner.name}`) : 'null';
  const head = `{"cidr":"${formatPrefix(prefix)}","affinity":${affinity}`;
  if (claimTimeMs === undefined) return head;
  return `${head},"affinity_claim_time":${formatJson(keepTime(claimTimeMs, raw.affinity_claim_time))}`;
}

/** Between the attributes and the sequence number. */
export function formatMiddle({ deleted }: JsonObject): string {
  return `,"deleted":${formatJson(deleted ?? false)},"sequenceNumber":`;
}

/** Behind all that Podwire knows. */
export function formatTail(raw: JsonObject): string {
  let text = '';
  for (const name of Object.keys(raw))
    if (!KNOWN.has(name)) text += `,${formatJson(name)}:${formatJson(raw[name] ?? null)}`;
  return text + '}';
}

/**
 * The stored form of attributes: what they were read from where that has fields of others, and its text once they were written. A
 * block is written whole with every allocation, and all but one of its attributes as they were.
 */
const attributeForms = new WeakMap<AllocationAttributes, JsonObject | string>();

const ATTRIBUTE_FIELDS = new Set(['handle_id', 'secondary', 'alternateOwnerAttrs', 'releasedAt']);

/** Keeps what attributes were read from, if they cannot be written again from their values. */
export function keepForm(value: AllocationAttributes, raw: JsonObject): void {
  const isMadeFrom = Object.keys(raw).every((name) => ATTRIBUTE_FIELDS.has(name) && raw[name] !== null);
  if (!isMadeFrom) attributeForms.set(value, raw);
}

/** The text of attributes that are stored. */
export function formOf(value: AllocationAttributes): string {
  const known = storedForm(value);
  if (known !== undefined) return known;
  const text = JSON.stringify(encodeAttributes(value));
  attributeForms.set(value, text);
  return text;
}

/** What attributes are written for. */
export interface AttributesWriting {
  readonly block: Block;
  /** What is stored of the block. */
  readonly before: Block | undefined;
  /** Those of its attributes that the block may have no more. */
  readonly gone: readonly AllocationAttributes[];
}

/** The text of attributes. An entry that was made anew with the content of a stored one gets its unknown fields. */
export function formOfWritten(value: AllocationAttributes, { block, before, gone }: AttributesWriting): string {
  const known = storedForm(value);
  if (known !== undefined) return known;
  const equal = gone.find((stored) => sameAttributes(stored, value));
  const unknown = equal ? undefined : unknownBefore(value, block, before);
  const encoded = encodeAttributes(value);
  // JSON.stringify makes one text, where putting pieces together makes a tree that is walked again by each write.
  const made = unknown ? formatJson({ ...encoded, ...unknown }) : JSON.stringify(encoded);
  const text = (equal && storedForm(equal)) ?? made;
  attributeForms.set(value, text);
  return text;
}

function storedForm(value: AllocationAttributes): string | undefined {
  const known = attributeForms.get(value);
  if (known === undefined || typeof known === 'string') return known;
  const text = formatJson(known);
  attributeForms.set(value, text);
  return text;
}

/** The fields of others that the entry of an allocation had before it was made to say something else. */
function unknownBefore(value: AllocationAttributes, block: Block, before: Block | undefined): JsonObject | undefined {
  if (!before || value.releasedAtMs !== undefined) return undefined;
  const ordinal = block.allocations.indexOf(block.attributes.indexOf(value));
  const stored = before.attributes[before.allocations[ordinal] ?? -1];
  const isSame = before.sequenceNumbers[ordinal] === block.sequenceNumbers[ordinal];
  if (!stored || !isSame || stored.handleId !== value.handleId) return undefined;
  const raw = parseJson(storedForm(stored) ?? '{}');
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
