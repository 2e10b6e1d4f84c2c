import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';

import type { AddressConflict, DisplacedMachine, ListedLease, NodeSession, StoreEpoch } from '../session.js';
import {
  field,
  isAbsent,
  readCount,
  readList,
  readObject,
  readOptionalText,
  readText,
  readUint64,
  unreadable,
  type Field,
} from './fields.js';
import type { JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Podwire's own records of nodes' sessions and of store epochs. Times are epoch milliseconds. */

export function decodeSession(raw: JsonObject, { name }: RecordName & { kind: 'nodeSession' }): NodeSession {
  const reported = field(raw, 'reportedAtMs');
  const displaced = field(raw, 'displaced');
  return {
    name,
    machineId: readText(field(raw, 'machineId')),
    bootId: readText(field(raw, 'bootId')),
    generation: readInteger(field(raw, 'generation')),
    address: readOptionalText(field(raw, 'address')) ?? '',
    revision: readInteger(field(raw, 'revision')),
    heardAtMs: readInteger(field(raw, 'heardAtMs')),
    leases: readList(field(raw, 'leases')).map(decodeLease),
    ...(isAbsent(displaced) ? {} : { displaced: decodeDisplaced(displaced) }),
    reportedAtMs: isAbsent(reported) ? undefined : readInteger(reported),
    epoch: readOptionalText(field(raw, 'epoch')) ?? '',
    conflicts: readList(field(raw, 'conflicts')).map(decodeConflict),
  };
}

function decodeLease(source: Field): ListedLease {
  const raw = readObject(source);
  return {
    address: readAddress(field(raw, 'address', source.path)),
    sequenceNumber: readUint64(field(raw, 'sequenceNumber', source.path)),
  };
}

function decodeDisplaced(source: Field): DisplacedMachine {
  const raw = readObject(source);
  return {
    bootId: readText(field(raw, 'bootId', source.path)),
    sinceMs: readInteger(field(raw, 'sinceMs', source.path)),
    untilMs: readInteger(field(raw, 'untilMs', source.path)),
  };
}

function decodeConflict(source: Field): AddressConflict {
  const raw = readObject(source);
  return {
    address: readAddress(field(raw, 'address', source.path)),
    attachment: readText(field(raw, 'attachment', source.path)),
    holder: readText(field(raw, 'holder', source.path)),
  };
}

function readAddress(source: Field): Address {
  const address = parseAddress(readText(source));
  if (!address) throw unreadable(source, 'an address');
  return address;
}

function readInteger(source: Field): number {
  return readCount(source, Number.MAX_SAFE_INTEGER);
}

export function encodeSession(session: NodeSession, raw: JsonObject): JsonObject {
  const { machineId, bootId, generation, address, revision, heardAtMs, reportedAtMs, epoch } = session;
  return {
    ...raw,
    machineId,
    bootId,
    generation,
    address,
    revision,
    heardAtMs,
    leases: session.leases.map((lease) => ({ ...lease, address: formatAddress(lease.address) })),
    ...(session.displaced && { displaced: { ...session.displaced } }),
    reportedAtMs: reportedAtMs ?? null,
    epoch,
    conflicts: session.conflicts.map((conflict) => ({ ...conflict, address: formatAddress(conflict.address) })),
  };
}

export function decodeEpoch(raw: JsonObject): StoreEpoch {
  const heardSince = field(raw, 'heardSinceMs');
  return {
    id: readText(field(raw, 'id')),
    startedAtMs: readInteger(field(raw, 'startedAtMs')),
    importId: readOptionalText(field(raw, 'importId')) ?? '',
    heardSinceMs: isAbsent(heardSince) ? undefined : readInteger(heardSince),
  };
}

export function encodeEpoch({ id, startedAtMs, importId, heardSinceMs }: StoreEpoch, raw: JsonObject): JsonObject {
  return { ...raw, id, startedAtMs, importId, heardSinceMs: heardSinceMs ?? null };
}
