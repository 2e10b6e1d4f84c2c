import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { compareAddresses, formatAddress, type Address } from '@podwire/shared/net/address';

import { addressHolder, allocationOf } from '../addresses/addresses.js';
import { attributesFor, refreshEndpoint } from '../addresses/allocate/allocate.js';
import { takeOverKey } from '../blocks/endpoint-key.js';
import { describeEndpoint, endpointAddress, heldAddressesOf } from '../records/derived-endpoint.js';
import { handleChanges, requireHandleReadable } from '../records/handle-counts.js';
import {
  allocatedAtMs,
  belongsTo,
  type AllocationAttributes,
  type NetnsIdentity,
  type PodIdentity,
} from '../records/attributes.js';
import { addressOf, heldAddressesIn, replaceAttributes, type HeldAddress } from '../records/block.js';
import { endpointKey, makeEndpoint, type Endpoint } from '../records/endpoint.js';
import { isLeaseOf, leaseHandle } from '../records/lease.js';
import type { Change, Decision, View } from '../records/view.js';
import { Reallocation } from './reallocation.js';
import { requireSession, updateSession, type SessionName } from './session.js';

/** Names one allocation of an address, and no later one. */
export interface AllocationName {
  readonly address: Address;
  readonly sequenceNumber: bigint;
}

/** Leases that a node gave to an attachment. */
export interface Binding {
  readonly attachment: Attachment;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
  /** All addresses of the attachment, at least one, at most one of each family. */
  readonly addresses: readonly AllocationName[];
  /** When the node gave the addresses to the attachment, in epoch milliseconds by the node's clock. */
  readonly attachedAtMs: number;
}

interface BindingInput {
  readonly nodeName: string;
  readonly session: SessionName;
  readonly binding: Binding;
  readonly nowMs: number;
}

/** The result of a binding. */
export interface Bound {
  readonly endpoint: Endpoint;
  /** The addresses that were leases or free before; empty when the binding was recorded already. */
  readonly added: readonly Address[];
  readonly sessionRevision: number;
}

/**
 * Turns leases of a node into the addresses of an attachment: all or none. Stores what Allocate would have stored at the
 * time of the attachment. An address that is free is allocated again, because the attachment has it: another tool
 * released it, or the datastore was restored. Idempotent.
 * @throws Failure ALLOCATION_MISMATCH when another holder has an address, or the attachment has another of its family;
 * SESSION_SUPERSEDED; STORE_CORRUPT when a block, or the attachment's handle or a block that it names, cannot be read
 */
export function bindAddresses(view: View, input: BindingInput): Decision<Bound> {
  const { nodeName, binding, nowMs } = input;
  const { attachment, addresses } = binding;
  const id = handleId(attachment);
  const session = requireSession(view, nodeName, input.session);
  requireHandleReadable(view, id);
  const held = heldAddressesOf(view, attachment);
  const named = addresses.flatMap((name) => namedAllocation(view, name, { nodeName, attachment }) ?? []);
  const free = addresses.filter(({ address }) => !allocationOf(view, address));
  requireNoOtherAddress(held, addresses, attachment);
  const [first, ...rest] = held;
  const known = first && describeEndpoint(view, attachment, [first, ...rest]);
  if (known && known.nodeName !== nodeName)
    throw mismatch(`attachment ${formatAttachment(attachment)} is on node ${known.nodeName}, not on ${nodeName}`);
  const pod = known ? known.pod : binding.pod;
  const netns = binding.netns ?? known?.netns;
  const leases = named.filter(({ attributes }) => isLeaseOf(nodeName)(attributes));
  // The release of an address that is allocated again may be in the history.
  const sinceMs = free.length > 0 ? nowMs : beginMs(leases, binding.attachedAtMs, nowMs);
  const attributes = attributesFor({ attachment, nodeName, pod }, sinceMs);
  const reallocated = reallocate(view, { nodeName, names: free, attributes, nowMs });
  const blocks = [
    ...leases.map(({ block, ordinal }) => replaceAttributes(block, ordinal, attributes)),
    ...reallocated.blocks,
  ];
  const base = known ?? makeEndpoint({ attachment, nodeName, pod, netns, createdAtMs: sinceMs }, []);
  const taken = blocks.flatMap((block) => heldAddressesIn(block, belongsTo(attachment)));
  const added = addresses.flatMap(({ address }) =>
    taken.filter((each) => addressOf(each).value === address.value).map((each) => endpointAddress(view, each)),
  );
  const endpoint = { ...base, netns, addresses: [...base.addresses, ...added] };
  const listed = session.leases.filter((lease) => !addresses.some(isAt(lease.address)));
  const updated = updateSession(view, { session, patch: { leases: listed }, nowMs });
  const changes: Change[] = [
    ...reallocated.changes,
    ...blocks.map((value): Change => ({ type: 'put', record: { kind: 'block', value } })),
    ...(blocks.length > 0
      ? [
          ...handleChanges(view, leaseHandle(nodeName), blocks),
          ...handleChanges(view, id, blocks),
          { type: 'expectUnreleased', handleId: id } as const,
        ]
      : []),
    ...(known ? refreshEndpoint(view, known, endpoint, held) : [takeOverKey(view, endpointKey(endpoint), endpoint)]),
  ];
  return {
    changes: changes.length > 0 || updated.isWritten ? [...changes, ...updated.changes] : [],
    outcome: { endpoint, added: added.map(({ address }) => address), sessionRevision: updated.revision },
  };
}

function isAt(address: Address): (name: AllocationName) => boolean {
  return (name) => compareAddresses(name.address, address) === 0;
}

interface LostAllocations {
  readonly nodeName: string;
  readonly names: readonly AllocationName[];
  readonly attributes: AllocationAttributes;
  readonly nowMs: number;
}

/** @throws Failure ALLOCATION_MISMATCH when an address cannot be allocated again */
function reallocate(
  view: View,
  { nodeName, names, attributes, nowMs }: LostAllocations,
): Pick<Reallocation, 'blocks' | 'changes'> {
  if (names.length === 0) return { blocks: [], changes: [] };
  const node = view.node(nodeName);
  if (!node || node.deletionTimeMs !== undefined)
    throw mismatch(`node ${nodeName} ${node ? 'is being deleted' : 'is not registered'} and gets no address`);
  const taken = new Reallocation(view, { nodeName, nowMs });
  for (const { address } of names) {
    const refusal = taken.take(address, attributes);
    if (refusal !== undefined) throw mismatch(refusal);
  }
  const { blocks, changes } = taken;
  return { blocks, changes: [{ type: 'expect', record: { kind: 'node', value: node } }, ...changes] };
}

/** The node's clock may differ: a tenure begins neither before the lease, when another attachment had the address, nor in the future. */
export function beginMs(leases: readonly HeldAddress[], attachedAtMs: number, nowMs: number): number {
  const leasedAtMs = leases.map(({ attributes }) => allocatedAtMs(attributes) ?? 0);
  return Math.min(Math.max(attachedAtMs, ...leasedAtMs), nowMs);
}

interface Holders {
  readonly nodeName: string;
  readonly attachment: Attachment;
}

/**
 * @returns undefined for a free address
 * @throws Failure ALLOCATION_MISMATCH unless the allocation is the node's lease, or the attachment's already
 */
function namedAllocation(
  view: View,
  { address, sequenceNumber }: AllocationName,
  holders: Holders,
): HeldAddress | undefined {
  const held = allocationOf(view, address);
  if (!held) return undefined;
  const { handleId: holder } = addressHolder(held);
  const isMeant = isLeaseOf(holders.nodeName)(held.attributes) || belongsTo(holders.attachment)(held.attributes);
  if (isMeant) return held;
  const expected = `lease ${sequenceNumber} of node ${holders.nodeName}`;
  throw mismatch(`${formatAddress(address)} is held by handle ${holder ?? 'unknown'}, and is no ${expected}`);
}

/** @throws Failure ALLOCATION_MISMATCH when the attachment holds another address of a named family */
function requireNoOtherAddress(
  held: readonly HeldAddress[],
  addresses: readonly AllocationName[],
  attachment: Attachment,
): void {
  for (const { address } of addresses) {
    const other = held
      .filter(({ block }) => block.prefix.family === address.family)
      .map(({ block, ordinal }) => ({ ...address, value: block.prefix.value + BigInt(ordinal) }))
      .find(({ value }) => value !== address.value);
    if (!other) continue;
    const text = `attachment ${formatAttachment(attachment)} holds ${formatAddress(other)}, so ${formatAddress(address)} is not bound to it`;
    throw mismatch(text);
  }
}

function mismatch(text: string): Failure {
  return new Failure('ALLOCATION_MISMATCH', text);
}
