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
