import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';

import type { HeldAddress } from '../blocks/holding.js';
import { attachmentOf, sameAttributes, sameOwnerAttributes, type OwnerAttributes } from '../records/attributes.js';
import { replaceAttributes } from '../records/block.js';
import type { Decision, View } from '../records/view.js';
import type { AllocationAttributes } from './records.js';
import { allocationOf, holderOfAddress, type AddressHolder } from './release-addresses.js';

export interface AttributesChange {
  readonly address: Address;
  /** The handle that has to hold the address; undefined for any, or none. */
  readonly handleId: string | undefined;
  /** The sequence number of the allocation that is meant; undefined for whichever there is. */
  readonly sequenceNumber: bigint | undefined;
  /** What the attributes have to be before; undefined for anything. */
  readonly expected: OwnerAttributes | undefined;
  /** What they become, all of them; undefined for as they are. */
  readonly attributes: OwnerAttributes | undefined;
  /** What those of the second owner have to be before; empty for none, undefined for anything. */
  readonly expectedAlternate: OwnerAttributes | undefined;
  /** What those of the second owner become; empty for none, undefined for as they are. */
  readonly alternate: OwnerAttributes | undefined;
}

/** Told by these, the attachment's endpoint and release are found. */
const OF_THE_ATTACHMENT = ['network', 'interface', 'node', 'namespace', 'pod', 'timestamp'];
/** Only Allocate makes an address an attachment's. */
const OF_ANY = ['network', 'interface'];

/**
 * Replaces what the owners of an address say of themselves, one or both. What does not come true of what is expected changes nothing.
 * Idempotent, unless the attributes before were expected.
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
    throw new Failure('ALLOCATION_MISMATCH', `address ${address} ${mismatch}; read it again and decide anew`, {
      details: { address },
    });
  const { block, ordinal } = held;
  const attributes = changed(held.attributes, change);
  const holder = holderOfAddress({ block, ordinal, attributes });
  if (sameAttributes(attributes, held.attributes)) return { changes: [], outcome: holder };
  const value = replaceAttributes(block, ordinal, attributes);
  return { changes: [{ type: 'put', record: { kind: 'block', value } }], outcome: holder };
}

function changed(before: AllocationAttributes, { attributes, alternate }: AttributesChange): AllocationAttributes {
  const { handleId, releasedAtMs } = before;
  const owner = attributes ?? before.owner;
  const second = alternate ?? before.alternateOwner ?? {};
  const alternateOwner = Object.keys(second).length > 0 ? second : undefined;
  return { handleId, owner, ...(alternateOwner && { alternateOwner }), releasedAtMs };
}

/** What keeps the change from being made. */
function mismatchOf(held: HeldAddress, change: AttributesChange): string | undefined {
  const { handleId, owner, alternateOwner = {}, sequenceNumber } = holderOfAddress(held);
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
  const fixed = attachmentOf(held.attributes) ? OF_THE_ATTACHMENT : OF_ANY;
  const different = fixed.filter((name) => owner[name] !== attributes[name]);
  return different.length === 0
    ? undefined
    : `keeps its attributes ${different.join(', ')}, which Allocate writes and Release goes by`;
}
