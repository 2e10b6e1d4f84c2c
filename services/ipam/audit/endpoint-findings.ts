import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf, type Prefix } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { attributesFor } from '../addresses/allocate/allocate.js';
import { EndpointEdits, isSameAllocation } from '../blocks/endpoint-edits.js';
import { expectBlock } from '../records/absence.js';
import { describeEndpoint, heldAddressesOf, touchBlocks } from '../records/derived-endpoint.js';
import { handleChanges } from '../records/handle-counts.js';
import { releaseHolder } from '../blocks/release-changes.js';
import { allocatedAtMs, belongsTo, type AllocationAttributes } from '../records/attributes.js';
import { attributesAt, isHeld, releaseAddresses, type Block } from '../records/block.js';
import type { Endpoint, EndpointAddress } from '../records/endpoint.js';
import type { Change, StoredEndpoint, StoredForeignEndpoint, View } from '../records/view.js';
import type { AuditContext } from './context.js';
import { makeFinding, objectOf, noRemedy, safeRemedy, type Finding, type FindingKind, type Remedy } from './finding.js';

/** The state in the blocks of an address that is in use. */
export type AllocationState =
  | { readonly state: 'unknown' | 'outside' | 'noBlock' }
  | { readonly state: 'free'; readonly block: Block }
  | { readonly state: 'held'; readonly block: Block; readonly attributes: AllocationAttributes };

export function allocationStateOf(context: AuditContext, address: Prefix): AllocationState {
  const block = context.blockOf(address);
  if (block === 'unreadable') return { state: 'unknown' };
  if (!block) return { state: context.isInPool(address) ? 'noBlock' : 'outside' };
  const attributes = attributesAt(block, ordinalOf(block.prefix, address));
  return attributes && isHeld(attributes) ? { state: 'held', block, attributes } : { state: 'free', block };
}

/** Faults of a Podwire endpoint: it names an address it does not hold, misses one it holds, or its node is gone. */
export function findEndpointFaults(context: AuditContext, { key, value }: StoredEndpoint): Finding[] {
  const endpoint = { key, value };
  const addressFindings = value.addresses.flatMap((address) => findNamedAddressFaults(context, endpoint, address));
  return [
    ...addressFindings,
    ...(addressFindings.length === 0 ? findOutdatedAddresses(context, endpoint) : []),
    ...findGoneNode(context, endpoint),
  ];
}

function findNamedAddressFaults(
  context: AuditContext,
  endpoint: StoredEndpoint,
  endpointAddress: EndpointAddress,
): Finding[] {
  const { attachment } = endpoint.value;
  const { address } = endpointAddress;
  const allocation = allocationStateOf(context, address);
  const text = `${formatAttachment(attachment)} uses ${formatAddress(address)}`;
  switch (allocation.state) {
    case 'unknown':
      return [];
    case 'outside':
    case 'noBlock': {
      const remedy = noRemedy('there is no block to allocate it in; replace the container');
      const where = allocation.state === 'outside' ? 'which is in no pool' : 'which is in no block';
      return [addressFinding('addressUnallocated', { endpoint, address, remedy, explanation: `${text}, ${where}` })];
    }
    case 'free': {
      const effect = `allocates ${formatAddress(address)} to ${formatAttachment(attachment)} again`;
      const remedy = safeRemedy(effect, () => restoreChanges(context, { endpoint, address, block: allocation.block }));
      const explanation = `${text}, which is not allocated, so another container may get it`;
      return [addressFinding('addressUnallocated', { endpoint, address, remedy, explanation })];
    }
    case 'held': {
      if (belongsTo(attachment)(allocation.attributes)) return [];
      const remedy = outdatedRemedy(context, endpoint, { objectOf: endpointAddress, block: allocation.block });
      const explanation = `${text}, which is allocated to handle ${allocation.attributes.handleId ?? 'none'}`;
      return [addressFinding('addressOfSeveralOwners', { endpoint, address, remedy, explanation })];
    }
  }
}

interface NamedAddress {
  readonly objectOf: EndpointAddress;
  readonly block: Block;
}

/**
 * The remedy for an address that was allocated again since the endpoint was written. Sequence numbers show whether the
 * earlier allocation had ended, for example by another tool.
 */
function outdatedRemedy(
  context: AuditContext,
  { key, value }: StoredEndpoint,
  { objectOf, block }: NamedAddress,
): Remedy {
  const now = block.sequenceNumbers[ordinalOf(block.prefix, objectOf.address)] ?? 0n;
  if (now <= objectOf.sequenceNumber)
    return noRemedy('IPAM cannot determine which of the two uses it; replace the container that should not');
  const isLast = value.addresses.every((other) => isSameAllocation(other, objectOf));
  const effect = isLast
    ? 'removes the endpoint, whose allocation ended before the address was allocated again'
    : 'removes the address from the endpoint; its allocation ended before the address was allocated again';
  return safeRemedy(effect, () => [
    ...new EndpointEdits(context.view, []).removeAllocation(key, value.attachment, objectOf).changes(),
    ...expectBlock(context.view, block.prefix),
  ]);
}

interface RestoreInput {
  readonly endpoint: StoredEndpoint;
  readonly address: Prefix;
  readonly block: Block;
}

function restoreChanges({ view, nowMs }: AuditContext, { endpoint, address, block }: RestoreInput): Change[] {
  const { key, value } = endpoint;
  const restored = restoreAddress(block, address, attributesFor(value, nowMs));
  const ordinal = ordinalOf(block.prefix, address);
  const sequenceNumber = restored.sequenceNumbers[ordinal] ?? 0n;
  const addresses = value.addresses.map((known) =>
    known.address.value === address.value ? { ...known, block: block.prefix, sequenceNumber } : known,
  );
  return [
    { type: 'put', record: { kind: 'block', value: restored } },
    ...handleChanges(view, handleId(value.attachment), [restored]),
    { type: 'put', record: { kind: 'endpoint', key, value: { ...value, addresses } } },
  ];
}

/** Finds an endpoint that holds all addresses it names, but does not name all it holds. */
function findOutdatedAddresses({ view }: AuditContext, { key, value }: StoredEndpoint): Finding[] {
  if (isCompleteByHandle(view, value)) return [];
  const [first, ...rest] = heldAddressesOf(view, value.attachment);
  if (!first) return [];
  const held = [first, ...rest] as const;
  const { addresses } = describeEndpoint(view, value.attachment, held);
  // A named address that is missing here is in an unreadable block, or in one that the handle does not name: not the endpoint's fault.
  const seen = new Set(addresses.map(({ address }) => formatPrefix(address)));
  if (!value.addresses.every(({ address }) => seen.has(formatPrefix(address)))) return [];
  if (addressText({ addresses }) === addressText(value)) return [];
  const explanation = `endpoint ${key.namespace}/${key.name} lists ${addressText(value)}, but its attachment holds ${addressText({ addresses })}`;
  const remedy = safeRemedy('rewrites the endpoint from the blocks', () => [
    ...touchBlocks(held),
    { type: 'put', record: { kind: 'endpoint', key, value: { ...value, addresses } } },
  ]);
  const subject = { type: 'endpoint', key } as const;
  return [makeFinding({ kind: 'endpointOutdated', subject, objects: objectsOf({ key, value }), explanation, remedy })];
}

/** The usual case with few lookups: the handle's count matches, and each named address has its sequence number. */
function isCompleteByHandle(view: View, { attachment, addresses }: Endpoint): boolean {
  const counts = [...(view.handle(handleId(attachment))?.blocks.values() ?? [])];
  if (counts.reduce((sum, count) => sum + count, 0) !== addresses.length) return false;
  return addresses.every(
    ({ address, block, sequenceNumber }) =>
      view.block(block)?.sequenceNumbers[ordinalOf(block, address)] === sequenceNumber,
  );
}

function addressText({ addresses }: Pick<Endpoint, 'addresses'>): string {
  return addresses.map(({ address, sequenceNumber }) => `${formatAddress(address)} (${sequenceNumber})`).join(', ');
}

function findGoneNode(context: AuditContext, { key, value }: StoredEndpoint): Finding[] {
  if (!context.isNodeGone(value.nodeName)) return [];
  const held = heldAddressesOf(context.view, value.attachment);
  const times = held.map(({ attributes }) => allocatedAtMs(attributes));
  const sinceMs = times.reduce((a, b) => (a === undefined || b === undefined ? undefined : Math.max(a, b)), 0);
  const remedy: Remedy = {
    type: 'release',
    effect: `removes the endpoint and releases its ${formatCount(held.length, 'address', 'addresses')}`,
    sinceMs,
    changes: () => {
      const ending = { type: 'attachment', attachment: value.attachment } as const;
      return releaseHolder(context.view, { target: ending, held, nowMs: context.nowMs });
    },
  };
  const explanation = `${formatAttachment(value.attachment)} has an endpoint on node ${value.nodeName}, which is gone`;
  const subject = { type: 'endpoint', key } as const;
  return [
    makeFinding({ kind: 'endpointOfGoneNode', subject, objects: objectsOf({ key, value }), explanation, remedy }),
  ];
}

function objectsOf({ key, value }: StoredEndpoint) {
  return [
    objectOf.endpoint(key),
    ...value.addresses.map(({ address }) => objectOf.address(address)),
    objectOf.node(value.nodeName),
  ] as const;
}

interface AddressFindingParts extends Pick<Finding, 'explanation' | 'remedy'> {
  readonly endpoint: StoredEndpoint | StoredForeignEndpoint;
  readonly address: Prefix;
}

export function addressFinding(
  kind: FindingKind,
  { endpoint, address, explanation, remedy }: AddressFindingParts,
): Finding {
  const { key, value } = endpoint;
  return makeFinding({
    kind,
    subject: { type: 'endpoint', key },
    objects: [objectOf.address(address), objectOf.endpoint(key), objectOf.node(value.nodeName)],
    explanation,
    remedy,
  });
}

/** Allocates a free or cooling address to its known user. */
function restoreAddress(block: Block, address: Prefix, attributes: AllocationAttributes): Block {
  const ordinal = ordinalOf(block.prefix, address);
  const index = block.attributes.length;
  const taken = {
    ...block,
    allocations: block.allocations.with(ordinal, index),
    unallocated: block.unallocated.filter((free) => free !== ordinal),
    attributes: [...block.attributes, attributes],
    sequenceNumbers: block.sequenceNumbers.with(ordinal, block.sequenceNumber),
  };
  // Also drops attributes that no address uses any more, such as the cool-down's.
  return releaseAddresses(taken, []);
}
