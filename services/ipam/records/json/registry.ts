import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { comparePrefixes } from '@podwire/shared/net/prefix';

import type { RecordValue } from '../view.js';
import { decodeAffinity, encodeAffinity } from './affinity.js';
import { decodeBlock, formatBlock, unknownFields } from './block.js';
import { decodeClusterInformation, decodeConfig, encodeConfig } from './config.js';
import {
  decodeAnyEndpoint,
  decodeForeignEndpoint,
  encodeEndpoint,
  encodeForeignEndpoint,
  ENDPOINT_FIELDS,
} from './endpoint.js';
import { hasOnly, Unreadable } from './fields.js';
import { decodeHandle, encodeHandle, HANDLE_FIELDS } from './handle.js';
import { formatJson, isObject, parseJson, type JsonObject } from './json.js';
import type { RecordKeys, RecordName } from './keys.js';
import { decodeNode, encodeNode } from './node.js';
import { decodePool, encodePool } from './pool.js';
import { decodeRequestPolicies, encodeRequestPolicies } from './request-policies.js';
import { decodeReservation, encodeReservation } from './reservation.js';
import { decodeRevokedCertificates, encodeRevokedCertificates } from './revoked-certificates.js';
import { decodeEpoch, decodeSession, encodeEpoch, encodeSession } from './session.js';

/** A record with the part of its source JSON that a rewrite needs, so that unknown fields are kept. */
export interface DecodedRecord {
  readonly record: RecordValue;
  readonly raw: JsonObject;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * Reads a stored record.
 * @param name - the name from {@link RecordKeys.parse}
 * @throws Failure STORE_CORRUPT naming the key and the reason
 */
export function decodeRecord(key: string, name: RecordName, value: Uint8Array): DecodedRecord {
  try {
    const raw = parseObject(decodeText(value, name));
    const record = decodeNamed(raw, name);
    return { record, raw: unknownFieldsOf(record, raw) };
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    throw new Failure(
      'STORE_CORRUPT',
      `record ${key} cannot be read: ${error.message}; correct or delete it in the datastore`,
      { details: { key, reason: error.message }, cause: error },
    );
  }
}

/** @returns undefined for kinds that Podwire does not read, and for records that cannot be read */
export function decodeIfReadable(keys: RecordKeys, key: string, value: Uint8Array): RecordValue | undefined {
  const name = keys.parse(key);
  try {
    return name && decodeRecord(key, name, value).record;
  } catch (error) {
    if (error instanceof Failure) return undefined;
    throw error;
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
function unknownFieldsOf({ kind }: RecordValue, raw: JsonObject): JsonObject {
  if (kind === 'block') return unknownFields(raw);
  if (kind !== 'handle' && kind !== 'endpoint') return raw;
  return hasOnly(raw, kind === 'handle' ? HANDLE_FIELDS : ENDPOINT_FIELDS) ? NO_UNKNOWN_FIELDS : raw;
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
      if (comparePrefixes(value.prefix, name.prefix) !== 0) throw new Unreadable('cidr differs from the key');
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
    case 'nodeSession':
      return { kind: 'nodeSession', value: decodeSession(raw, name) };
    case 'storeEpoch':
      return { kind: 'storeEpoch', value: decodeEpoch(raw) };
    case 'revokedCertificates':
      return { kind: 'revokedCertificates', value: decodeRevokedCertificates(raw) };
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
    const text = formatBlock(record.value, { value: stored?.kind === 'block' ? stored.value : undefined, raw });
    return { bytes: Buffer.from(text), decoded: { record, raw } };
  }
  const raw = encodeRecord(record, previous);
  if (record.kind === 'foreignEndpoint') {
    const decoded = { record: { ...record, value: decodeForeignEndpoint(raw) }, raw };
    return { bytes: serialize(raw), decoded };
  }
  if (previous || (record.kind !== 'handle' && record.kind !== 'endpoint'))
    return { bytes: serialize(raw), decoded: { record, raw } };
  // Only fields of other writers have large integers.
  return { bytes: Buffer.from(JSON.stringify(raw)), decoded: { record, raw: NO_UNKNOWN_FIELDS } };
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
      return record.value.stored === '' ? encodeForeignEndpoint(record) : parseObject(record.value.stored);
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
    case 'nodeSession':
      return encodeSession(record.value, raw);
    case 'storeEpoch':
      return encodeEpoch(record.value, raw);
    case 'revokedCertificates':
      return encodeRevokedCertificates(record.value, raw);
  }
}

/** Bytes of a record's JSON. */
export function serialize(raw: JsonObject): Buffer {
  return Buffer.from(formatJson(raw));
}
