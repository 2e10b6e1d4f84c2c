import { isDeepStrictEqual } from 'node:util';

import {
  isArray,
  isObject,
  objectIn,
  parseJson,
  withoutFields,
  type Json,
  type JsonObject,
} from '../../records/json/json.js';
import { decodePool, encodePool, OWN_CONDITION } from '../../records/json/pool.js';

/** Calico's IPPool. Users write it too, by kubectl or from a repository: podwire-ipam changes only the fields that it must. */

/** The name under which podwire-ipam writes the status. */
export const STATUS_MANAGER = 'podwire-ipam';

/** Keeps a pool until its addresses are released, also if an operator deletes it: `kubectl delete ippool` drains it. */
export const POOL_FINALIZER = 'podwire.dev/ippool';

export const ALLOCATABLE = 'Allocatable';

/** Fields of an object's metadata that mean nothing outside of this API server. */
const SERVER_FIELDS: readonly string[] = ['resourceVersion', 'managedFields', 'generation', 'finalizers'];

/** How the condition that podwire-ipam itself has written appears in records. */
export type OwnConditions = 'marked' | 'hidden';

/** The record of a pool, in the form of Calico's v3 API. */
export function poolRecord(object: JsonObject, ownConditions: OwnConditions): JsonObject {
  const metadata = withoutFields(objectIn(object, 'metadata'), SERVER_FIELDS);
  const record = { ...object, apiVersion: 'projectcalico.org/v3', metadata };
  if (!isOwnCondition(object)) return record;
  const conditions = conditionsOf(object).flatMap((condition): Json[] => {
    if (!isObject(condition) || condition.type !== ALLOCATABLE) return [condition];
    return ownConditions === 'hidden' ? [] : [{ ...condition, type: OWN_CONDITION }];
  });
  return { ...record, status: { ...objectIn(object, 'status'), conditions } };
}

export function conditionsOf(object: JsonObject): readonly Json[] {
  const { conditions } = objectIn(object, 'status');
  return isArray(conditions) ? conditions : [];
}

/** Whether podwire-ipam was the last to write the condition `Allocatable`. */
export function isOwnCondition(object: JsonObject): boolean {
  const { managedFields } = objectIn(object, 'metadata');
  if (!isArray(managedFields)) return false;
  return managedFields.some((entry) => {
    if (!isObject(entry) || entry.manager !== STATUS_MANAGER) return false;
    const conditions = objectIn(objectIn(objectIn(entry, 'fieldsV1'), 'f:status'), 'f:conditions');
    return Object.hasOwn(objectIn(conditions, `k:{"type":"${ALLOCATABLE}"}`), 'f:message');
  });
}

/** The merge patch of a pool: the fields of its spec that the record changes, and the finalizer of one that is being deleted. */
export function poolPatch(name: string, record: JsonObject, base: JsonObject): JsonObject {
  const metadata = objectIn(base, 'metadata');
  const { uid = null, resourceVersion = null } = metadata;
  const finalizers = finalizersOf(base);
  const isEnding = objectIn(record, 'metadata').deletionTimestamp !== undefined;
  if (isEnding && metadata.deletionTimestamp === undefined && !finalizers.includes(POOL_FINALIZER))
    return { metadata: { uid, resourceVersion, finalizers: [...finalizers, POOL_FINALIZER] } };
  const stored = objectIn(encodePool(decodePool(base, { kind: 'pool', name }), undefined), 'spec');
  const wanted = objectIn(record, 'spec');
  const changed = [...new Set([...Object.keys(stored), ...Object.keys(wanted)])].filter(
    (field) => !isDeepStrictEqual(stored[field] ?? false, wanted[field] ?? false),
  );
  const spec = Object.fromEntries(changed.map((field) => [field, wanted[field] ?? null]));
  return { metadata: { uid, resourceVersion }, ...(changed.length === 0 || isEnding ? {} : { spec }) };
}

export function finalizersOf(object: JsonObject): readonly string[] {
  const { finalizers } = objectIn(object, 'metadata');
  return isArray(finalizers) ? finalizers.filter((each) => typeof each === 'string') : [];
}

/** When the deletion of the pool began, as its stored form has it. */
export function deletionTimeIn(value: Uint8Array | undefined): Json | undefined {
  const raw = value && parseJson(Buffer.from(value).toString());
  return isObject(raw) ? objectIn(raw, 'metadata').deletionTimestamp : undefined;
}
