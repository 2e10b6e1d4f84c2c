import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { ordinalOf, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { recordedEndpoint } from '../records/derived-endpoint.js';
import { blockOf } from '../blocks/lookup.js';
import { requireReadable } from '../records/absence.js';
import {
  allocatedAtMs,
  attachmentOf,
  holderOf,
  sameAttributes,
  sameOwnerAttributes,
  type AllocationAttributes,
  type NetnsIdentity,
  type OwnerAttributes,
} from '../records/attributes.js';
import {
  attributesAt,
  collectCooled,
  isHeld,
  replaceAttributes,
  type Block,
  type HeldAddress,
} from '../records/block.js';
import { DEFAULT_CONFIG } from '../records/config.js';
import { endpointKey } from '../records/endpoint.js';
import { isLease } from '../records/lease.js';
import type { Decision, View } from '../records/view.js';

/** The current state of an address. */
type AddressState =
  /** It is allocated, or leased to a node without a pod that is known yet. */
  | { readonly kind: 'allocated' | 'leased'; readonly holder: AddressHolder; readonly sinceMs: number | undefined }
  /** It was released and cools down before its reuse. */
  | { readonly kind: 'cooling'; readonly releasedAtMs: number; readonly untilMs: number }
  /** Free, but allocated only on explicit request. */
  | { readonly kind: 'reserved'; readonly reservationNames: readonly string[] }
  /** Free, inside or outside a block. */
  | { readonly kind: 'free' }
  /** Address in no pool, so it cannot be allocated. */
  | { readonly kind: 'unmanaged' };

export interface AddressReport {
  readonly state: AddressState;
  /** Its block; undefined when there is none yet. */
  readonly block: Block | undefined;
  /** Pool; undefined when it is in no pool. */
  readonly poolName: string | undefined;
}

/**
 * Reports the state of an address. Changes nothing.
 * @throws Failure STORE_CORRUPT when its block cannot be read, or when it was released and the configuration, which has
 * the length of the cool-down, cannot be read
 */
export function getAddress(view: View, address: Address, nowMs: number): AddressReport {
  const stored = blockOf(view, address);
  if (stored && attributesAt(stored, ordinalOf(stored.prefix, address))?.releasedAtMs !== undefined)
    requireReadable(view, { kind: 'config' });
  const { cooldownSeconds } = view.config() ?? DEFAULT_CONFIG;
  const block = stored && collectCooled(stored, nowMs, cooldownSeconds);
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, address));
  const state = (block && usedState({ block, address, cooldownSeconds })) ?? freeState(view, address, pool?.prefix);
  return { state, block: stored, poolName: pool?.name };
}

interface AddressLookup {
  readonly block: Block;
  readonly address: Address;
  readonly cooldownSeconds: number;
}

function usedState({ block, address, cooldownSeconds }: AddressLookup): AddressState | undefined {
  const ordinal = ordinalOf(block.prefix, address);
  const attributes = attributesAt(block, ordinal);
  if (!attributes) return undefined;
  const { releasedAtMs } = attributes;
  if (releasedAtMs !== undefined)
    return { kind: 'cooling', releasedAtMs, untilMs: releasedAtMs + cooldownSeconds * 1000 };
  return {
    kind: isLease(attributes) ? 'leased' : 'allocated',
    holder: addressHolder({ block, ordinal, attributes }),
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

export interface AttributesChange {
  readonly address: Address;
  /** The expected handle; undefined for any or none. */
  readonly handleId: string | undefined;
  /** The expected sequence number of the allocation; undefined for any. */
  readonly sequenceNumber: bigint | undefined;
  /** The expected current attributes; undefined for any. */
  readonly expected: OwnerAttributes | undefined;
  /** The new attributes, replacing all; undefined to keep them. */
  readonly attributes: OwnerAttributes | undefined;
  /** The expected current attributes of the second owner; empty for none, undefined for any. */
  readonly expectedAlternate: OwnerAttributes | undefined;
  /** The new attributes of the second owner; empty for none, undefined to keep them. */
  readonly alternate: OwnerAttributes | undefined;
}

/** Attributes of an attachment that identify it for its endpoint and release. */
const ATTACHMENT_ATTRIBUTES = ['network', 'interface', 'node', 'namespace', 'pod', 'timestamp'];
/** Attributes that no address may change, because only Allocate binds an address to an attachment. */
const FIXED_ATTRIBUTES = ['network', 'interface'];

/**
 * Replaces the attributes of one or both owners of an address. Changes nothing unless all expectations hold.
 * Idempotent, unless the current attributes were expected.
 * @throws Failure ADDRESS_NOT_ALLOCATED, ALLOCATION_MISMATCH
 */
export function setAttributes(view: View, change: AttributesChange): Decision<AddressHolder> {
  const held = allocationOf(view, change.address);
  const address = formatAddress(change.address);
  if (!held) {
    const text = `address ${address} is not allocated, so it has no attributes; allocate it first`;
    throw new Failure('ADDRESS_NOT_ALLOCATED', text, { details: { address } });
  }
  const mismatch = mismatchOf(held, change);
  if (mismatch !== undefined)
    throw new Failure('ALLOCATION_MISMATCH', `address ${address} ${mismatch}; read it again and retry`, {
      details: { address },
    });
  const { block, ordinal } = held;
  const attributes = changedAttributes(held.attributes, change);
  const holder = addressHolder({ block, ordinal, attributes });
  if (sameAttributes(attributes, held.attributes)) return { changes: [], outcome: holder };
  const value = replaceAttributes(block, ordinal, attributes);
  return { changes: [{ type: 'put', record: { kind: 'block', value } }], outcome: holder };
}

function changedAttributes(
  before: AllocationAttributes,
  { attributes, alternate }: AttributesChange,
): AllocationAttributes {
  const { handleId, releasedAtMs } = before;
  const owner = attributes ?? before.owner;
  const second = alternate ?? before.alternateOwner ?? {};
  const alternateOwner = Object.keys(second).length > 0 ? second : undefined;
  return { handleId, owner, ...(alternateOwner && { alternateOwner }), releasedAtMs };
}

/** The reason to refuse the change, if any. */
function mismatchOf(held: HeldAddress, change: AttributesChange): string | undefined {
  const { handleId, owner, alternateOwner = {}, sequenceNumber } = addressHolder(held);
  if (change.handleId !== undefined && change.handleId !== handleId)
    return `is held by ${handleId === undefined ? 'no handle' : `handle ${handleId}`}, not by ${change.handleId}`;
  if (change.sequenceNumber !== undefined && change.sequenceNumber !== sequenceNumber)
    return `was allocated with sequence number ${sequenceNumber}, not ${change.sequenceNumber}`;
  if (change.expected && !sameOwnerAttributes(owner, change.expected))
    return `has the attributes ${JSON.stringify(owner)}, not those expected`;
  if (change.expectedAlternate && !sameOwnerAttributes(alternateOwner, change.expectedAlternate))
    return `has the attributes ${JSON.stringify(alternateOwner)} of a second owner, not those expected`;
  const { attributes } = change;
  if (!attributes) return undefined;
  const fixed = attachmentOf(held.attributes) ? ATTACHMENT_ATTRIBUTES : FIXED_ATTRIBUTES;
  const different = fixed.filter((name) => owner[name] !== attributes[name]);
  return different.length === 0
    ? undefined
    : `keeps its attributes ${different.join(', ')}, which Allocate writes and Release matches`;
}

/** The holder of an address. */
export interface AddressHolder {
  /** Handle; undefined when no handle holds it. */
  readonly handleId: string | undefined;
  readonly owner: Readonly<Record<string, string>>;
  /** The second owner's attributes; undefined when there is none. */
  readonly alternateOwner?: Readonly<Record<string, string>> | undefined;
  readonly sequenceNumber: bigint;
}

/** The allocation of an address; undefined when it is not allocated. */
export function allocationOf(view: View, address: Address): HeldAddress | undefined {
  const block = blockOf(view, address);
  if (!block) return undefined;
  const ordinal = ordinalOf(block.prefix, address);
  const attributes = attributesAt(block, ordinal);
  return attributes && isHeld(attributes) ? { block, ordinal, attributes } : undefined;
}

export function addressHolder({ block, ordinal, attributes }: HeldAddress): AddressHolder {
  const { handleId, owner, alternateOwner } = attributes;
  return { handleId, owner, alternateOwner, sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n };
}

/**
 * The network namespace in the holder's endpoint. A release that depends on it changes the endpoint, so it loses its
 * comparison if an allocation has written another namespace meanwhile.
 */
export function netnsOf(view: View, { attributes }: HeldAddress): NetnsIdentity | undefined {
  const attachment = attachmentOf(attributes);
  return attachment && recordedEndpoint(view, endpointKey({ attachment, ...holderOf(attributes) }), attachment)?.netns;
}
