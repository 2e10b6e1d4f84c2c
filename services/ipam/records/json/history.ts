import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { HistoryEntry } from '../history.js';
import { field, isAbsent, readObject, readOptionalText, readPrefix, readTextMap, Unreadable } from './fields.js';
import { parseJson, type JsonObject } from './json.js';

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
  try {
    return readEntry(readObject({ path: '', value: parseJson(Buffer.from(value).toString()) }));
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
