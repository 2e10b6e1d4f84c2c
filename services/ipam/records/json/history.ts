import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import {
  RECORDED_KINDS,
  type ChangeEntry,
  type FieldChange,
  type HistoryEntry,
  type ObjectChange,
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

/** Longest value of a field, in UTF-16 code units. */
const MAX_VALUE_LENGTH = 4096;

/** Length of an entry from which on further values are cut to a word: etcd's transactions are limited. */
const MAX_ENTRY_LENGTH = 65_536;

/** Length of a value that is cut because its entry is long. */
const CUT_LENGTH = 32;

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

/** Whether changes of a record are recorded. */
export function isRecorded({ kind }: RecordValue): boolean {
  return KINDS[kind] !== undefined;
}

/** The record that has an object. */
export function recordOf({ kind, name }: Pick<ObjectChange, 'kind' | 'name'>): RecordName {
  switch (kind) {
    case 'ippool':
      return { kind: 'pool', name };
    case 'ipreservation':
      return { kind: 'reservation', name };
    case 'ipamconfig':
      return { kind: 'config' };
    case 'node':
      return { kind: 'node', name };
    case 'requestpolicy':
      return { kind: 'requestPolicies' };
    case 'revokedcertificate':
      return { kind: 'revokedCertificates' };
  }
}

/** The recorded differences between two states of one record; none for a record that is not recorded. */
export function objectChanges(before: RecordValue | undefined, after: RecordValue | undefined): ObjectChange[] {
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
export function isApplied({ action, name, fields }: ObjectChange, record: RecordValue | undefined): boolean {
  const object = objectsIn(record).get(name);
  if (!object || action === 'deleted') return !object && action === 'deleted';
  return fields.every(({ field: path, after }) => cut(object.get(path), MAX_VALUE_LENGTH) === after);
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
  return [...new Set([...before.keys(), ...after.keys()])].flatMap((path) => {
    const [was, is] = [before.get(path), after.get(path)];
    if (was === is) return [];
    return [{ field: path, before: cut(was, MAX_VALUE_LENGTH), after: cut(is, MAX_VALUE_LENGTH) }];
  });
}

function cut<Text extends string | undefined>(text: Text, length: number): Text | string {
  return text === undefined || text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

/** Podwire's own form, like that of past allocations. */
export function encodeChangeEntry({ atMs, by, objects }: ChangeEntry): JsonObject {
  let length = 0;
  const shorten = (value: string | undefined): string | null => {
    const text = cut(value, length > MAX_ENTRY_LENGTH ? CUT_LENGTH : MAX_VALUE_LENGTH) ?? null;
    length += text?.length ?? 0;
    return text;
  };
  return {
    at: new Date(atMs).toISOString(),
    by,
    objects: objects.map(({ kind, name, action, fields }) => ({
      ...{ kind, name, action },
      fields: fields.map(({ field: path, before, after }) => [path, shorten(before), shorten(after)]),
    })),
  };
}

/** @returns undefined for bytes that {@link encodeChangeEntry} did not write */
export function decodeChangeEntry(value: Uint8Array): ChangeEntry | undefined {
  return decodeHistory(value, (raw) => {
    const atMs = Date.parse(readOptionalText(field(raw, 'at')) ?? '');
    if (Number.isNaN(atMs)) return undefined;
    return { atMs, by: readText(field(raw, 'by')), objects: readList(field(raw, 'objects')).map(readObjectChange) };
  });
}

const ACTIONS = ['created', 'changed', 'deleted'] as const;

function readObjectChange(source: Field): ObjectChange {
  const raw = readObject(source);
  const kind = RECORDED_KINDS.find((known) => known === raw.kind);
  const action = ACTIONS.find((known) => known === raw.action);
  if (!kind || !action) throw unreadable(source, 'a change of an object');
  const fields = readList(field(raw, 'fields', source.path)).map((entry) => {
    const [path, before, after] = readList(entry);
    if (!path || !before || !after) throw unreadable(entry, 'a path with two values');
    return { field: readText(path), before: readOptionalText(before), after: readOptionalText(after) };
  });
  return { kind, name: readText(field(raw, 'name', source.path)), action, fields };
}
