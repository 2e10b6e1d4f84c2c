import { addressAt, hostPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { allocatedAtMs } from './attributes.js';
import type { HeldAddress } from './block.js';

/** The entry of an allocation that ends. */
export function historyEntry({ block, ordinal, attributes }: HeldAddress, nowMs: number): HistoryEntry {
  return {
    address: hostPrefix(addressAt(block.prefix, ordinal)),
    block: block.prefix,
    handleId: attributes.handleId,
    owner: attributes.owner,
    allocatedAtMs: allocatedAtMs(attributes),
    releasedAtMs: nowMs,
    sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
  };
}

/** A past allocation: holder, address, begin and end. Written with the release, never changed. */
export interface HistoryEntry {
  /** Address of full length: /32 or /128. */
  readonly address: Prefix;
  readonly block: Prefix;
  readonly handleId: string | undefined;
  readonly owner: Readonly<Record<string, string>>;
  /** Time; undefined when the attributes have none. */
  readonly allocatedAtMs: number | undefined;
  readonly releasedAtMs: number;
  /** Sequence number of the allocation; together with the address it identifies it. */
  readonly sequenceNumber: bigint;
}

/** The kinds of objects whose changes are recorded, as podwirectl names them. */
export const RECORDED_KINDS = [
  'ippool',
  'ipreservation',
  'ipamconfig',
  'node',
  'requestpolicy',
  'revokedcertificate',
] as const;
export type RecordedKind = (typeof RECORDED_KINDS)[number];

/** A field of an object before and after a change; undefined where the object has none. */
export interface FieldChange {
  /** Path in the stored form: `cidr`, `labels.zone`. */
  readonly field: string;
  readonly before: string | undefined;
  readonly after: string | undefined;
}

/** Two states of an object. */
export interface ObjectDifference {
  readonly kind: RecordedKind;
  readonly name: string;
  readonly action: 'created' | 'changed' | 'deleted';
  /** Differences, at most 100 fields. Long values are cut. */
  readonly fields: readonly FieldChange[];
}

/** Change of an object by a request: written in the transaction of the request, never changed. */
export interface ObjectChange extends ObjectDifference {
  readonly atMs: number;
  /** Who requested it: `operator "ann"`, `local process`, `podwire-ipam: release-deleted-nodes`. */
  readonly author: string;
}
