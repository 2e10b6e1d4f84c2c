import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import {
  RECORDED_KINDS,
  type FieldChange,
  type HistoryEntry,
  type ObjectChange,
  type ObjectDifference,
  type RecordedKind,
} from '../history.js';
import type { RevokedCertificate } from '../revoked-certificate.js';
import type { RecordName, RecordValue } from '../view.js';
import {
  field,
  isAbsent,
  readList,
  readObject,
  readOptionalText,
  readPrefix,
  readText,
  readTextMap,
  unreadable,
  Unreadable,
  type Field,
} from './fields.js';
import { formatJson, isArray, isObject, parseJson, type Json, type JsonObject } from './json.js';
import { encodeRecord } from './registry.js';

/** Podwire's own form of a past allocation; Calico has none. 64-bit numbers and times are human-readable texts. */
export function encodeHistoryEntry(entry: HistoryEntry): JsonObject {
  const { address, block, handleId, owner, allocatedAtMs, releasedAtMs, sequenceNumber } = entry;
  return {
    address: formatAddress(address),
    block: formatPrefix(block),
    ...(handleId === undefined ? {} : { handleID: handleId }),
    attributes: owner,
    ...(allocatedAtMs === undefined ? {} : { allocatedAt: new Date(allocatedAtMs).toISOString() }),
    releasedAt: new Date(releasedAtMs).toISOString(),
    sequenceNumber: String(sequenceNumber),
  };
}

/** @returns undefined for bytes that {@link encodeHistoryEntry} did not write */
export function decodeHistoryEntry(value: Uint8Array): HistoryEntry | undefined {
  return decodeHistory(value, readEntry);
}

/** @returns undefined for bytes that are not an object, or that `read` cannot read */
function decodeHistory<Entry>(value: Uint8Array, read: (raw: JsonObject) => Entry | undefined): Entry | undefined {
  try {
    return read(readObject({ path: '', value: parseJson(Buffer.from(value).toString()) }));
  } catch (error) {
    if (error instanceof Unreadable || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function readEntry(raw: JsonObject): HistoryEntry | undefined {
  const address = parseAddress(readOptionalText(field(raw, 'address')) ?? '');
  const allocatedAt = field(raw, 'allocatedAt');
  const allocatedAtMs = isAbsent(allocatedAt) ? undefined : Date.parse(readOptionalText(allocatedAt) ?? '');
  const releasedAtMs = Date.parse(readOptionalText(field(raw, 'releasedAt')) ?? '');
  const sequenceNumber = readOptionalText(field(raw, 'sequenceNumber')) ?? '';
  const isValid = !Number.isNaN(allocatedAtMs) && !Number.isNaN(releasedAtMs) && /^\d{1,20}$/.test(sequenceNumber);
  if (!address || !isValid) return undefined;
  return {
    address: hostPrefix(address),
    block: readPrefix(field(raw, 'block')),
    handleId: readOptionalText(field(raw, 'handleID')),
    owner: readTextMap(field(raw, 'attributes')),
    allocatedAtMs,
    releasedAtMs,
    sequenceNumber: BigInt(sequenceNumber),
  };
}

/** Limits of a change: longest value in UTF-16 code units, and number of fields. */
const MAX_VALUE_LENGTH = 1024;
const MAX_FIELDS = 100;

/** Fields that identify the object, or that only Podwire uses. */
const OMITTED = ['kind', 'apiVersion', 'status', 'name', 'uid', 'creationTimestamp', 'annotations'];

/** Groups of fields whose name adds nothing. */
const UNNAMED_GROUPS = ['metadata', 'spec'];

type FlatObject = ReadonlyMap<string, string>;

const KINDS: Partial<Record<RecordValue['kind'], RecordedKind>> = {
  pool: 'ippool',
  reservation: 'ipreservation',
  config: 'ipamconfig',
  node: 'node',
  requestPolicies: 'requestpolicy',
  revokedCertificates: 'revokedcertificate',
};

/** The record that has an object. */
export function recordOf({ kind, name }: Pick<ObjectChange, 'kind' | 'name'>): RecordName {
  if (kind === 'ippool') return { kind: 'pool', name };
  if (kind === 'ipreservation') return { kind: 'reservation', name };
  if (kind === 'node') return { kind, name };
  if (kind === 'ipamconfig') return { kind: 'config' };
  return { kind: kind === 'requestpolicy' ? 'requestPolicies' : 'revokedCertificates' };
}

/** Differences between two states of one record; none for a record that is not recorded. */
export function objectDifferences(before: RecordValue | undefined, after: RecordValue | undefined): ObjectDifference[] {
  const kind = KINDS[(after ?? before)?.kind ?? 'block'];
  if (!kind) return [];
  const [old, present] = [objectsIn(before), objectsIn(after)];
  return [...new Set([...old.keys(), ...present.keys()])].sort(compareTexts).flatMap((name) => {
    const [was, is] = [old.get(name), present.get(name)];
    const action = !was ? 'created' : !is ? 'deleted' : 'changed';
    const fields = fieldChanges(was ?? new Map(), is ?? new Map());
    return action === 'changed' && fields.length === 0 ? [] : [{ kind, name, action, fields }];
  });
}

/** Whether a state of the object's record has every field as it is after the change. */
export function isApplied({ action, name, fields }: ObjectDifference, record: RecordValue | undefined): boolean {
  const object = objectsIn(record).get(name);
  if (!object || action === 'deleted') return !object && action === 'deleted';
  return fields.every(({ field: path, after }) => cut(object.get(path)) === after);
}

function objectsIn(record: RecordValue | undefined): ReadonlyMap<string, FlatObject> {
  if (!record) return new Map();
  const json = encodeRecord(record, undefined);
  if (record.kind === 'requestPolicies')
    return new Map(listIn(json.items).map((item) => [nameIn(item.metadata), flatten(item)]));
  if (record.kind === 'revokedCertificates')
    return new Map(
      record.value.map((certificate) => [certificate.serialNumber, flatten(certificateFields(certificate))]),
    );
  return new Map([[record.kind === 'config' ? 'default' : nameIn(json.metadata), flatten(json)]]);
}

function certificateFields({ name: holder, expiresAtMs }: RevokedCertificate): JsonObject {
  return { holder, ...(expiresAtMs === undefined ? {} : { expires: new Date(expiresAtMs).toISOString() }) };
}

function listIn(json: Json | undefined): JsonObject[] {
  return isArray(json) ? json.filter(isObject) : [];
}

function nameIn(metadata: Json | undefined): string {
  const name = isObject(metadata) ? metadata.name : undefined;
  return typeof name === 'string' ? name : '';
}

function flatten(object: JsonObject, path = '', flat = new Map<string, string>()): Map<string, string> {
  for (const [name, value] of Object.entries(object)) {
    const isTop = path === '';
    if (isTop && OMITTED.includes(name)) continue;
    if (isObject(value)) flatten(value, isTop && UNNAMED_GROUPS.includes(name) ? '' : `${path}${name}.`, flat);
    else flat.set(path + name, textOf(value));
  }
  return flat;
}

function textOf(value: Json): string {
  if (typeof value === 'string') return value;
  const texts = isArray(value) ? value.flatMap((each) => (typeof each === 'string' ? each : [])) : [];
  return texts.length > 0 && isArray(value) && texts.length === value.length ? texts.join(', ') : formatJson(value);
}

function fieldChanges(before: FlatObject, after: FlatObject): FieldChange[] {
  const paths = [...new Set([...before.keys(), ...after.keys()])].filter(
    (path) => before.get(path) !== after.get(path),
  );
  return paths
    .slice(0, MAX_FIELDS)
    .map((path) => ({ field: path, before: cut(before.get(path)), after: cut(after.get(path)) }));
}

function cut(text: string | undefined): string | undefined {
  return text === undefined || text.length <= MAX_VALUE_LENGTH ? text : `${text.slice(0, MAX_VALUE_LENGTH - 1)}…`;
}

/** Podwire's own form of the changes of a request, like that of past allocations. */
export function encodeChanges(changes: readonly ObjectChange[]): JsonObject {
  return {
    changes: changes.map(({ atMs, fields, ...rest }) => ({
      ...{ at: new Date(atMs).toISOString(), ...rest },
      fields: fields.map(({ field: path, before = null, after = null }) => [path, before, after]),
    })),
  };
}

/** @returns undefined for bytes that {@link encodeChanges} did not write */
export function decodeChanges(value: Uint8Array): ObjectChange[] | undefined {
  return decodeHistory(value, (raw) => {
    const source = field(raw, 'changes');
    return isAbsent(source) ? undefined : readList(source).map(readChange);
  });
}

const ACTIONS = ['created', 'changed', 'deleted'] as const;

function readChange(source: Field): ObjectChange {
  const raw = readObject(source);
  const atMs = Date.parse(readText(field(raw, 'at', source.path)));
  const kind = RECORDED_KINDS.find((known) => known === raw.kind);
  const action = ACTIONS.find((known) => known === raw.action);
  if (!kind || !action || Number.isNaN(atMs)) throw unreadable(source, 'a change of an object');
  const [author, name] = ['author', 'name'].map((each) => readText(field(raw, each, source.path)));
  const fields = readList(field(raw, 'fields', source.path)).map((entry) => {
    const [path, before, after] = readList(entry);
    if (!path || !before || !after) throw unreadable(entry, 'a path with two values');
    return { field: readText(path), before: readOptionalText(before), after: readOptionalText(after) };
  });
  return { atMs, author: author ?? '', kind, name: name ?? '', action, fields };
}
