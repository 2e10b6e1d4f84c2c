import type { Address } from '@podwire/shared/net/address';
import { ordinalOf, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { Block } from '../allocator/records.js';
import { holderOfAddress, type AddressHolder } from '../allocator/release-addresses.js';
import { DEFAULT_CONFIG } from '../blocks/demand.js';
import { blockOf } from '../blocks/lookup.js';
import { requireReadable } from '../records/absence.js';
import { allocatedAtMs } from '../records/attributes.js';
import { attributesAt, collectCold } from '../records/block.js';
import type { View } from '../records/view.js';

/** What an address is at the moment. */
type AddressState =
  /** Somebody holds it. */
  | { readonly kind: 'allocated'; readonly holder: AddressHolder; readonly sinceMs: number | undefined }
  /** It was released, and is kept from reuse for a while. */
  | { readonly kind: 'cooling'; readonly releasedAtMs: number; readonly untilMs: number }
  /** Free, but given only to those who ask for it. */
  | { readonly kind: 'reserved'; readonly reservationNames: readonly string[] }
  /** Free, in a block or not yet. */
  | { readonly kind: 'free' }
  /** In no pool, so nobody is given it. */
  | { readonly kind: 'unmanaged' };

export interface AddressReport {
  readonly state: AddressState;
  /** The block that it lies in; undefined when there is none yet. */
  readonly block: Block | undefined;
  /** Undefined when it lies in no pool. */
  readonly poolName: string | undefined;
}

/**
 * What is known of an address, without changing anything.
 * @throws Failure STORE_CORRUPT when its block cannot be read, or it was released and the configuration, which says for how long
 * it cools down, cannot be read
 */
export function getAddress(view: View, address: Address, nowMs: number): AddressReport {
  const stored = blockOf(view, address);
  if (stored && attributesAt(stored, ordinalOf(stored.prefix, address))?.releasedAtMs !== undefined)
    requireReadable(view, { kind: 'config' });
  const { cooldownSeconds } = view.config() ?? DEFAULT_CONFIG;
  const block = stored && collectCold(stored, nowMs, cooldownSeconds);
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, address));
  const state = (block && usedState({ block, address, cooldownSeconds })) ?? freeState(view, address, pool?.prefix);
  return { state, block: stored, poolName: pool?.name };
}

interface Place {
  readonly block: Block;
  readonly address: Address;
  readonly cooldownSeconds: number;
}

function usedState({ block, address, cooldownSeconds }: Place): AddressState | undefined {
  const ordinal = ordinalOf(block.prefix, address);
  const attributes = attributesAt(block, ordinal);
  if (!attributes) return undefined;
  const { releasedAtMs } = attributes;
  if (releasedAtMs !== undefined)
    return { kind: 'cooling', releasedAtMs, untilMs: releasedAtMs + cooldownSeconds * 1000 };
  return {
    kind: 'allocated',
    holder: holderOfAddress({ block, ordinal, attributes }),
    sinceMs: allocatedAtMs(attributes),
  };
}

function freeState(view: View, address: Address, pool: Prefix | undefined): AddressState {
  if (!pool) return { kind: 'unmanaged' };
  const reservationNames = view
    .reservations()
    .filter(({ prefixes }) => prefixes.some((prefix) => prefixContains(prefix, address)))
    .map(({ name }) => name);
  return reservationNames.length > 0 ? { kind: 'reserved', reservationNames } : { kind: 'free' };
}
