import { inventoryDigest } from '@podwire/shared/attachment/inventory-digest';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { compareAddresses, formatAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';

import { addressHolder, allocationOf, netnsOf } from '../addresses/addresses.js';
import { addressOf } from '../records/block.js';
import { sameAttachment } from '../records/derived-endpoint.js';
import { mayHaveLost } from '../blocks/epoch.js';
import { isNodeAddress, allBlocks, blockOf, unreadableBlockOf } from '../blocks/lookup.js';
import {
  allocatedAtMs,
  attachmentOf,
  belongsTo,
  type AllocationAttributes,
  type NetnsIdentity,
  type PodIdentity,
} from '../records/attributes.js';
import { heldAddressesIn, isHeld, type Block, type HeldAddress } from '../records/block.js';
import { isLease, isLeaseOf, leaseBootId } from '../records/lease.js';
import { poolOf } from '../records/pool.js';
import type { AddressConflict, ListedLease, NodeSession } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';
import type { AllocationName } from './bindings.js';
import { AddressClaims } from './reallocation.js';
import { displacedBoots, requireSession, updateSession, type SessionName } from './session.js';

/** An attachment that has addresses on a node. */
export interface HeldAttachment {
  readonly attachment: Attachment;
  readonly pod: PodIdentity | undefined;
  readonly addresses: readonly AllocationName[];
  /** Whether the pod has ended; then its addresses are about to be returned. */
  readonly isEnded: boolean;
}

/** Inventory of a node. */
export interface Inventory {
  readonly attachments: readonly HeldAttachment[];
  readonly leases: readonly AllocationName[];
}

/** An address of the inventory that the datastore does not have as the node has it. */
export interface InventoryFinding {
  /** Attachment; undefined for a lease. */
  readonly attachment: Attachment | undefined;
  readonly allocation: AllocationName;
  /** Holder of the address, for operators; empty if it is free, the attachment's, or a lease of the node. */
  readonly holder: string;
  /** Number of the allocation in the datastore, if that is the attachment's or a lease of the node; 0 otherwise. */
  readonly currentSequenceNumber: bigint;
}

/** An allocation of the node that its inventory does not have. */
export interface UnknownAllocation {
  readonly allocation: AllocationName;
  /** Attachment; undefined for a lease. */
  readonly attachment: Attachment | undefined;
  readonly netns: NetnsIdentity | undefined;
  readonly allocatedAtMs: number | undefined;
}

export interface InventoryDifference {
  readonly findings: readonly InventoryFinding[];
  readonly unknown: readonly UnknownAllocation[];
  /** Addresses of pods that have another holder. */
  readonly conflicts: readonly AddressConflict[];
  /** Addresses of pods that are free. */
  readonly unbound: readonly AllocationName[];
  /** Addresses of ended pods that are free. */
  readonly unreturned: readonly AllocationName[];
  /** Leases that are free. An ADD in progress may have one. */
  readonly lost: readonly AllocationName[];
}

interface Comparison {
  readonly nodeName: string;
  readonly inventory: Inventory;
}

/** Compares what a node holds with the datastore. Changes nothing. */
export function compareInventory(view: View, { nodeName, inventory }: Comparison): InventoryDifference {
  const { attachments, leases } = inventory;
  const findings: InventoryFinding[] = [];
  const conflicts: AddressConflict[] = [];
  const unbound: AllocationName[] = [];
  const unreturned: AllocationName[] = [];
  const lost: AllocationName[] = [];
  const reported = reportedOwners({ attachments, leases });
  for (const { attachment, pod, addresses, isEnded } of attachments)
    for (const allocation of addresses) {
      const found = findDifference(view, { nodeName, attachment, allocation, reported, isEnded });
      if (!found) continue;
      if (isFree(found)) (isEnded ? unreturned : unbound).push(allocation);
      // The node is about to return it: there is nothing to bind.
      if (!(isFree(found) && isEnded)) findings.push(found);
      if (found.holder === '' || isEnded) continue;
      conflicts.push({ address: allocation.address, attachment: describeHeld(attachment, pod), holder: found.holder });
    }
  for (const allocation of leases) {
    const found = findDifference(view, { nodeName, attachment: undefined, allocation, reported, isEnded: false });
    if (!found) continue;
    findings.push(found);
    if (isFree(found)) lost.push(allocation);
  }
  const held = allocationsOf(view, nodeName).filter((each) => !isReported(reported, each));
  const unknown = held.map((each) => describeUnknown(view, each));
  return { findings, unknown, conflicts, unbound, unreturned, lost };
}

function isFree({ holder, currentSequenceNumber }: InventoryFinding): boolean {
  return holder === '' && currentSequenceNumber === 0n;
}

/** Owners by address: the attachments that the node reports for it; undefined for a lease. */
type ReportedOwners = ReadonlyMap<string, readonly (Attachment | undefined)[]>;

function reportedOwners({ attachments, leases }: Inventory): ReportedOwners {
  const owners = new Map<string, (Attachment | undefined)[]>();
  const add = ({ address }: AllocationName, owner: Attachment | undefined): void => {
    const text = formatAddress(address);
    const known = owners.get(text);
    if (known) known.push(owner);
    else owners.set(text, [owner]);
  };
  for (const { attachment, addresses } of attachments) for (const each of addresses) add(each, attachment);
  for (const each of leases) add(each, undefined);
  return owners;
}

/** A lease that the node reports as an attachment's is that attachment's finding. */
function isReported(reported: ReportedOwners, held: HeldAddress): boolean {
  const owners = reported.get(formatAddress(addressOf(held)));
  if (!owners) return false;
  if (isLease(held.attributes)) return true;
  return owners.some((owner) => owner && belongsTo(owner)(held.attributes));
}

interface ReportedAddress {
  readonly nodeName: string;
  /** Attachment; undefined for a lease. */
  readonly attachment: Attachment | undefined;
  readonly allocation: AllocationName;
  readonly reported: ReportedOwners;
  readonly isEnded: boolean;
}

function findDifference(view: View, input: ReportedAddress): InventoryFinding | undefined {
  const { nodeName, attachment, allocation, reported, isEnded } = input;
  const { address } = allocation;
  const finding = { attachment, allocation, holder: '', currentSequenceNumber: 0n };
  const unreadable = unreadableBlockOf(view, address);
  if (unreadable) return { ...finding, holder: `unknown: record ${unreadable.key} cannot be read` };
  const held = allocationOf(view, address);
  if (!held) {
    const lessee = view.lessee(address);
    const kind = isNodeAddress(view, lessee ?? '', address) ? 'address' : 'unbound lease';
    return lessee !== undefined && lessee !== nodeName ? { ...finding, holder: `${kind} of node ${lessee}` } : finding;
  }
  const { attributes } = held;
  const isOwnLease = isLeaseOf(nodeName)(attributes);
  // Another node may have an attachment of the same name: container IDs need not be random.
  const isOwn = (attributes.owner.node ?? nodeName) === nodeName;
  const isSame = attachment ? isOwn && belongsTo(attachment)(attributes) : isOwnLease;
  const { sequenceNumber: current } = addressHolder(held);
  if (isSame || (isOwnLease && isEnded))
    return current === allocation.sequenceNumber ? undefined : { ...finding, currentSequenceNumber: current };
  if (isOwnLease) return { ...finding, currentSequenceNumber: current };
  // The node has given the address of an ended pod to another one, and is about to return and to bind it.
  const holder = isOwn ? attachmentOf(attributes) : undefined;
  const owners = reported.get(formatAddress(address)) ?? [];
  if (holder && owners.some((owner) => owner && sameAttachment(owner, holder))) return undefined;
  return { ...finding, holder: describeHolder(attributes) };
}

function describeHeld(attachment: Attachment, pod: PodIdentity | undefined): string {
  const name = formatAttachment(attachment);
  return pod ? `pod ${pod.namespace}/${pod.name} (${name})` : name;
}

function describeHolder(attributes: AllocationAttributes): string {
  const { handleId, owner } = attributes;
  const pod = owner.pod === undefined ? '' : `pod ${owner.namespace ?? ''}/${owner.pod} `;
  const attachment = attachmentOf(attributes);
  const name = attachment ? formatAttachment(attachment) : `handle ${handleId ?? 'unknown'}`;
  return `${pod}(${name}) on node ${owner.node ?? 'unknown'}`;
}

function describeUnknown(view: View, held: HeldAddress): UnknownAllocation {
  const { family, value } = addressOf(held);
  const { sequenceNumber } = addressHolder(held);
  return {
    allocation: { address: { family, value }, sequenceNumber },
    attachment: attachmentOf(held.attributes),
    netns: netnsOf(view, held),
    allocatedAtMs: allocatedAtMs(held.attributes),
  };
}

/**
 * The allocations that name a node and are leases or Podwire attachments', in any block. Allocations of
 * displaced machines do not count: they may be cut off with their pods.
 */
function allocationsOf(view: View, nodeName: string): HeldAddress[] {
  const isCounted = (attributes: AllocationAttributes): boolean =>
    attributes.owner.node === nodeName && (isLeaseOf(nodeName)(attributes) || attachmentOf(attributes) !== undefined);
  const held = [...allBlocks(view)].flatMap((block) =>
    nodesIn(block).has(nodeName) ? heldAddressesIn(block, isCounted) : [],
  );
  const displaced = displacedBoots(view, nodeName);
  if (displaced.size === 0) return held;
  return held.filter((each) => {
    const bootId = bootOf(view, each);
    return bootId !== undefined && !displaced.has(bootId);
  });
}

/** The boot that an allocation was made for; undefined if it is not known. */
function bootOf(view: View, held: HeldAddress): string | undefined {
  return isLease(held.attributes) ? leaseBootId(held.attributes) : netnsOf(view, held)?.bootId;
}

/** Cache: every report looks at all blocks, most of which have not changed since the last one. */
const nodesOfBlocks = new WeakMap<Block, ReadonlySet<string>>();

function nodesIn(block: Block): ReadonlySet<string> {
  const known = nodesOfBlocks.get(block);
  if (known) return known;
  const names = new Set(block.attributes.flatMap((each) => (isHeld(each) ? (each.owner.node ?? []) : [])));
  nodesOfBlocks.set(block, names);
  return names;
}

/** The digest of what a node holds according to the datastore. */
export function storedDigest(view: View, nodeName: string): Buffer {
  return inventoryDigest(
    allocationsOf(view, nodeName).map((held) => ({
      address: formatAddress(addressOf(held)),
      sequenceNumber: addressHolder(held).sequenceNumber,
      attachment: attachmentOf(held.attributes),
    })),
  );
}

export interface ReportInput {
  readonly nodeName: string;
  readonly session: SessionName;
  readonly digest: Buffer;
  /** Inventory; undefined if only the digest is compared. */
  readonly inventory: Inventory | undefined;
  readonly nowMs: number;
}

/** The result of a report. */
export interface InventoryReport extends Pick<InventoryDifference, 'findings' | 'unknown' | 'conflicts'> {
  readonly isEqual: boolean;
  readonly sessionRevision: number;
}

/**
 * Compares a node's inventory with the datastore, and records in its session that the node runs, the conflicts, and that
 * the node reported in the store's epoch. Free addresses of its pods join its list of leases, so that no other holder
 * gets them before the node has bound them. The first report of an epoch adds addresses of ended pods, until their return,
 * and leases, which ADDs in progress may have.
 * @throws Failure SESSION_SUPERSEDED
 */
export function reportInventory(view: View, input: ReportInput): Decision<InventoryReport> {
  const { nodeName, digest, inventory, nowMs } = input;
  const session = requireSession(view, nodeName, input.session);
  const isSameDigest = !inventory && storedDigest(view, nodeName).equals(digest);
  const { findings, unknown, conflicts, ...lists } = inventory
    ? compareInventory(view, { nodeName, inventory })
    : EQUAL;
  const isEqual = inventory ? findings.length + unknown.length === 0 : isSameDigest;
  const isReported = inventory !== undefined || isSameDigest;
  const { id = '' } = view.epoch() ?? {};
  // The node may still give, after a restore, the address of an ended pod to another one, until its return is sent.
  const free = session.epoch === id ? lists.unbound : [...lists.unbound, ...lists.lost, ...lists.unreturned];
  const { added, leftOutCount } = isReported ? unlisted(view, session, { free, nowMs }) : NOTHING_ADDED;
  const listed = inventory ? session.leases.filter(isKnown(view, session, inventory)) : session.leases;
  const leases = [...listed, ...added].sort((a, b) => compareAddresses(a.address, b.address));
  // Until all are listed, the node is awaited: other nodes would get the remaining addresses.
  const epoch = leftOutCount === 0 ? id : session.epoch;
  const patch = isReported ? { leases, conflicts, reportedAtMs: nowMs, epoch } : {};
  const { changes, isWritten, revision } = updateSession(view, { session, patch, nowMs });
  return {
    changes: isWritten ? [...changes, ...rewriteBlocks(view, added)] : [],
    outcome: { isEqual, findings, unknown, conflicts, sessionRevision: revision },
  };
}

const EQUAL: InventoryDifference = { findings: [], unknown: [], conflicts: [], unbound: [], unreturned: [], lost: [] };

/**
 * Whether a listed lease stays in the list: the node reports its address, or the block has it for the node. A lease of a
 * backup that neither has would keep the address from a pod that got it after the backup.
 */
function isKnown(view: View, { name }: NodeSession, { attachments, leases }: Inventory) {
  const addresses = [...leases, ...attachments.flatMap((each) => each.addresses)];
  const reported = new Set(addresses.map(({ address }) => formatAddress(address)));
  return ({ address }: ListedLease): boolean => {
    if (reported.has(formatAddress(address)) || unreadableBlockOf(view, address)) return true;
    const held = allocationOf(view, address);
    return held !== undefined && isLeaseOf(name)(held.attributes);
  };
}

/**
 * Addresses that one report adds to the list, unless the datastore was restored: the limits by which a node leaves the other
 * nodes their shares count few addresses at once.
 */
const LISTED_PER_REPORT = 64;

/** Blocks of the addresses that one report adds to the list: each takes a write. */
const BLOCKS_PER_REPORT = 64;

interface FreeAddresses {
  readonly free: readonly AllocationName[];
  readonly nowMs: number;
}

interface AddedAddresses {
  readonly added: readonly ListedLease[];
  /** Addresses whose blocks one transaction does not hold. */
  readonly leftOutCount: number;
}

const NOTHING_ADDED: AddedAddresses = { added: [], leftOutCount: 0 };

/**
 * Addresses kept for other nodes are excluded: a node must not withhold a pool by reporting its addresses.
 */
function unlisted(view: View, { name, leases }: NodeSession, { free, nowMs }: FreeAddresses): AddedAddresses {
  const known = new Set(leases.map(({ address }) => formatAddress(address)));
  const claims = new AddressClaims(view, { nodeName: name, nowMs });
  const blocks = new Set<Block>();
  const added: ListedLease[] = [];
  let leftOutCount = 0;
  const isLimited = !mayHaveLost(view, name);
  for (const { address, sequenceNumber } of free) {
    if (isLimited && added.length === LISTED_PER_REPORT) break;
    const pool = known.has(formatAddress(address)) ? undefined : poolOf(view.pools(), hostPrefix(address));
    if (!pool) continue;
    const block = blockOf(view, address);
    if (block && !blocks.has(block) && blocks.size === BLOCKS_PER_REPORT) {
      leftOutCount++;
      continue;
    }
    if (claims.take(pool, address) !== undefined) continue;
    if (block) blocks.add(block);
    known.add(formatAddress(address));
    added.push({ address: { family: address.family, value: address.value }, sequenceNumber });
  }
  return { added, leftOutCount };
}

/**
 * Writes the blocks of listed addresses as they are: a replica that has not seen the list yet, and gives one of the
 * addresses to another holder, loses its comparison.
 */
function rewriteBlocks(view: View, listed: readonly ListedLease[]): Change[] {
  const blocks = new Set(listed.flatMap(({ address }) => blockOf(view, address) ?? []));
  return [...blocks].map((value): Change => ({ type: 'put', record: { kind: 'block', value } }));
}
