import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { comparePrefixes } from '@podwire/shared/net/prefix';

import type { Handle } from '../block.js';
import type { RecordValue } from '../view.js';
import { decodeAffinity, encodeAffinity } from './affinity.js';
import { writeBlock } from './block-writer.js';
import { decodeBlock, formatBlock, readRewrittenBlock, unknownFields } from './block.js';
import { decodeClusterInformation } from './cluster-information.js';
import { decodeConfig, encodeConfig } from './config.js';
import { decodeAnyEndpoint, encodeEndpoint } from './endpoint.js';
import { Unreadable } from './fields.js';
import { decodeHandle, encodeHandle, formatNewHandle } from './handle.js';
import { formatJson, isObject, parseJson, type JsonObject } from './json.js';
import type { RecordName } from './keys.js';
import { decodeNode, encodeNode } from './node.js';
import { PackedEndpoint } from './packed-endpoint.js';
import { decodePool, encodePool } from './pool.js';
import { decodeRequestPolicies, encodeRequestPolicies } from './request-policies.js';
import { decodeReservation, encodeReservation } from './reservation.js';

/** A record with the part of its source JSON that a rewrite needs, so that unknown fields are kept. */
export interface DecodedRecord {
  readonly record: RecordValue;
  readonly raw: JsonObject;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * Reads a rewritten record, where knowing its previous state makes that faster.
 * @returns undefined where it does not; then use {@link decodeRecord}, which returns the same for a valid text
 */
export function decodeRewritten(value: Uint8Array, { record, raw }: DecodedRecord): DecodedRecord | undefined {
  if (record.kind !== 'block') return undefined;
  const { value: before } = record;
  const text = tryDecodeText(value);
  const block = text === undefined ? undefined : readRewrittenBlock(text, { value: before, raw });
  return block && { record: { kind: 'block', value: block }, raw };
}

/**
 * Reads a stored record.
 * @param name - the name from {@link RecordKeys.parse}
 * @throws Failure STORE_CORRUPT naming the key and the reason
 */
export function decodeRecord(key: string, name: RecordName, value: Uint8Array): DecodedRecord {
  try {
    const text = decodeText(value, name);
    const plain = decodeCanonical(text, { key, name });
    if (plain) return { record: plain, raw: NO_UNKNOWN_FIELDS };
    const raw = parseObject(text);
    const record = decodeNamed(raw, name);
    const unknown = unknownFieldsOf(record, { text, raw });
    if (record.kind === 'handle' && unknown === NO_UNKNOWN_FIELDS) cacheHandle(text, record.value);
    return { record, raw: unknown };
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    throw new Failure(
      'STORE_CORRUPT',
      `record ${key} cannot be read: ${error.message}; correct or delete it in the datastore`,
      { details: { key, reason: error.message }, cause: error },
    );
  }
}

/**
 * Blocks of handles by the text of the handle, which has no other content. Many handles have equal texts and share one
 * value.
 */
const handleBlocksByText = new Map<string, Handle['blocks']>();

const MAX_CACHED_HANDLES = 20_000;

function cacheHandle(text: string, { blocks }: Handle): void {
  if (handleBlocksByText.size >= MAX_CACHED_HANDLES) handleBlocksByText.clear();
  handleBlocksByText.set(text, blocks);
}

/** Decodes the most frequent kinds without parsing JSON, if their text is that of a new record. */
function decodeCanonical(
  text: string,
  { key, name }: { readonly key: string; readonly name: RecordName },
): RecordValue | undefined {
  if (name.kind === 'endpoint') return PackedEndpoint.read(key, text);
  if (name.kind !== 'handle') return undefined;
  const blocks = handleBlocksByText.get(text);
  return blocks && { kind: 'handle', value: { id: name.id, blocks } };
}

function tryDecodeText(value: Uint8Array): string | undefined {
  try {
    return utf8.decode(value);
  } catch {
    return undefined;
  }
}

function decodeText(value: Uint8Array, name: RecordName): string {
  // Old releases of Calico wrote affinities without a value.
  if (value.length === 0 && name.kind === 'affinity') return '{}';
  try {
    return utf8.decode(value);
  } catch (error) {
    throw new Unreadable(`it is not JSON (${messageOf(error)})`);
  }
}

/**
 * The JSON that a rewrite cannot derive from the value. Full JSON takes more memory than the record, and there are
 * many.
 */
function unknownFieldsOf(
  record: RecordValue,
  { text, raw }: { readonly text: string; readonly raw: JsonObject },
): JsonObject {
  if (record.kind === 'block') return unknownFields(raw);
  if (record.kind !== 'handle' && record.kind !== 'endpoint') return raw;
  return JSON.stringify(encodeRecord(record, undefined)) === text ? NO_UNKNOWN_FIELDS : raw;
}

function parseObject(text: string): JsonObject {
  let json;
  try {
    json = parseJson(text);
  } catch (error) {
    throw new Unreadable(`it is not JSON (${messageOf(error)})`);
  }
  if (!isObject(json)) throw new Unreadable('it is not a JSON object');
  return json;
}

function decodeNamed(raw: JsonObject, name: RecordName): RecordValue {
  switch (name.kind) {
    case 'pool':
      return { kind: 'pool', value: decodePool(raw, name) };
    case 'block': {
      const value = decodeBlock(raw);
      if (comparePrefixes(value.prefix, name.prefix) !== 0) throw new Unreadable('cidr is not the one of its key');
      return { kind: 'block', value };
    }
    case 'affinity':
      return { kind: 'affinity', value: decodeAffinity(raw, name) };
    case 'handle':
      return { kind: 'handle', value: decodeHandle(raw, name) };
    case 'endpoint':
      return { key: name.key, ...decodeAnyEndpoint(raw, name.key) };
    case 'config':
      return { kind: 'config', value: decodeConfig(raw) };
    case 'clusterInformation':
      return { kind: 'clusterInformation', value: decodeClusterInformation(raw) };
    case 'reservation':
      return { kind: 'reservation', value: decodeReservation(raw, name) };
    case 'requestPolicies':
      return { kind: 'requestPolicies', value: decodeRequestPolicies(raw) };
    case 'node':
      return { kind: 'node', value: decodeNode(raw, name) };
  }
}

/** A written record: its bytes, and the state for a later rewrite. */
interface WrittenRecord {
  readonly bytes: Buffer;
  readonly decoded: DecodedRecord;
}

const NO_UNKNOWN_FIELDS: JsonObject = {};

/**
 * Stored bytes of a record.
 * @param previous - the stored record under the same key; undefined for a new record
 */
export function writeRecord(record: RecordValue, previous: DecodedRecord | undefined): WrittenRecord {
  if (record.kind === 'block') {
    const stored = previous?.record;
    const raw = previous?.raw ?? NO_UNKNOWN_FIELDS;
    const bytes = writeBlock(record.value, { value: stored?.kind === 'block' ? stored.value : undefined, raw });
    return { bytes, decoded: { record, raw } };
  }
  if (previous) return writeJson(record, previous);
  if (record.kind === 'handle') return writeNewHandle(record.value);
  const written = record.kind === 'endpoint' ? PackedEndpoint.write(record) : undefined;
  return written
    ? { bytes: Buffer.from(written.text), decoded: withoutUnknownFields(written.packed) }
    : writeJson(record, previous);
}

function writeNewHandle(value: Handle): WrittenRecord {
  const text = formatNewHandle(value);
  const blocks = handleBlocksByText.get(text);
  if (!blocks) cacheHandle(text, value);
  return {
    bytes: Buffer.from(text),
    decoded: withoutUnknownFields({ kind: 'handle', value: blocks ? { id: value.id, blocks } : value }),
  };
}

function writeJson(record: RecordValue, previous: DecodedRecord | undefined): WrittenRecord {
  const raw = encodeRecord(record, previous);
  const isMadeOfValue = !previous && record.kind === 'endpoint';
  return { bytes: Buffer.from(formatJson(raw)), decoded: { record, raw: isMadeOfValue ? NO_UNKNOWN_FIELDS : raw } };
}

/** A record whose stored form has no unknown fields. */
function withoutUnknownFields(record: RecordValue): DecodedRecord {
  return { record, raw: NO_UNKNOWN_FIELDS };
}

/**
 * Stored JSON of a record.
 * @param previous - the stored record under the same key; undefined for a new record
 */
export function encodeRecord(record: RecordValue, previous: DecodedRecord | undefined): JsonObject {
  const stored = previous?.record;
  const raw = previous?.raw ?? {};
  switch (record.kind) {
    case 'pool':
      return encodePool(record.value, stored?.kind === 'pool' ? { value: stored.value, raw } : undefined);
    case 'block':
      return parseObject(
        formatBlock(record.value, { value: stored?.kind === 'block' ? stored.value : undefined, raw }),
      );
    case 'affinity':
      return encodeAffinity(record.value, raw);
    case 'handle':
      return encodeHandle(record.value, raw);
    case 'endpoint':
      return encodeEndpoint(record, raw);
    case 'foreignEndpoint':
      return parseObject(record.value.stored);
    case 'config':
      return encodeConfig(record.value, raw);
    case 'clusterInformation':
      return raw;
    case 'reservation':
      return encodeReservation(record.value, stored?.kind === 'reservation' ? { value: stored.value, raw } : undefined);
    case 'requestPolicies':
      return encodeRequestPolicies(record.value, raw);
    case 'node':
      return encodeNode(record.value, raw);
  }
}

/** Bytes of a record's JSON. */
export function serialize(raw: JsonObject): Uint8Array {
  return Buffer.from(formatJson(raw));
}
