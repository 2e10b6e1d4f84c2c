import type { AddressInUse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { formatAddress } from '@podwire/shared/net/address';

import { attachmentOf, holderOf } from '../records/attributes.js';
import type { HeldAddress } from '../records/block.js';
import { addressOf } from '../records/block.js';

/** Maximum number of addresses in an answer. */
const NAMED_COUNT = 100;

/** Addresses that running nodes kept, for the answer of a release. */
export function keptMessage(kept: readonly HeldAddress[]): { kept: AddressInUse[]; keptAddresses: bigint } {
  const named = kept.slice(0, NAMED_COUNT).map((held) => ({
    ...holderOf(held.attributes),
    address: formatAddress(addressOf(held)),
    attachment: attachmentOf(held.attributes),
  }));
  return { kept: named, keptAddresses: BigInt(kept.length) };
}
