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
  return {
    name,
    machineId: readText(field(raw, 'machineId')),
    bootId: readText(field(raw, 'bootId')),
    generation: readInteger(field(raw, 'generation')),
    address: readOptionalText(field(raw, 'address')) ?? '',
    revision: readInteger(field(raw, 'revision')),
    heardAtMs: readInteger(field(raw, 'heardAtMs')),
    leases: readList(field(raw, 'leases')).map(decodeLease),
    displaced: readList(field(raw, 'displaced')).map(decodeMachine),
    reportedAtMs: isAbsent(reported) ? undefined : readInteger(reported),
    epoch: readOptionalText(field(raw, 'epoch')) ?? '',
    conflicts: readList(field(raw, 'conflicts')).map(decodeConflict),
  };
}

function decodeMachine(source: Field): DisplacedMachine {
  const raw = readObject(source);
  return {
    machineId: readText(field(raw, 'machineId', source.path)),
    bootId: readText(field(raw, 'bootId', source.path)),
  };
}

function decodeLease(source: Field): ListedLease {
  const raw = readObject(source);
  return {
    address: readAddress(field(raw, 'address', source.path)),
    sequenceNumber: readUint64(field(raw, 'sequenceNumber', source.path)),
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
  const { machineId, bootId, displaced, generation, address, revision, heardAtMs, reportedAtMs, epoch } = session;
  return {
    ...raw,
    machineId,
    bootId,
    displaced: displaced.map((machine) => ({ ...machine })),
    generation,
    address,
    revision,
    heardAtMs,
    leases: session.leases.map((lease) => ({ ...lease, address: formatAddress(lease.address) })),
    reportedAtMs: reportedAtMs ?? null,
    epoch,
    conflicts: session.conflicts.map((conflict) => ({ ...conflict, address: formatAddress(conflict.address) })),
  };
}

export function decodeEpoch(raw: JsonObject): StoreEpoch {
  return {
    id: readText(field(raw, 'id')),
    importId: readOptionalText(field(raw, 'importId')) ?? '',
    phase: readPhase(field(raw, 'phase')),
  };
}

const PHASES: readonly StoreEpoch['phase'][] = ['first', 'waiting', 'waited'];

function readPhase(source: Field): StoreEpoch['phase'] {
  const phase = PHASES.find((each) => each === source.value);
  if (!phase) throw unreadable(source, PHASES.join(', '));
  return phase;
}

export function encodeEpoch({ id, importId, phase }: StoreEpoch, raw: JsonObject): JsonObject {
  return { ...raw, id, importId, phase };
}
