import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf, type Prefix } from '@podwire/shared/net/prefix';
import { counted } from '@podwire/shared/words/counted';

import { allocatedAtMs, attachmentOf, attributesFor, belongsTo } from '../attributes.js';
import { attributesAt, touchBlock } from '../block.js';
import { describeEndpoint } from '../endpoint.js';
import { giveBack, isHeld } from '../give-back.js';
import { handleChanges, heldBy, type HeldAddress } from '../holding.js';
import type { AllocationAttributes, Block, Endpoint } from '../records.js';
import type { Change, StoredEndpoint, StoredForeignEndpoint, View } from '../view.js';
import { makeFinding, named, noRemedy, safely, type Finding, type FindingKind, type Remedy } from './finding.js';
import type { Judging } from './judging.js';
import { restoreAddress } from './restore.js';

/** Where an address that somebody uses stands in the blocks. */
type Standing =
  | { readonly state: 'unknown' | 'outside' | 'noBlock' }
  | { readonly state: 'free'; readonly block: Block }
  | { readonly state: 'held'; readonly block: Block; readonly attributes: AllocationAttributes };

export function standingOf(judging: Judging, address: Prefix): Standing {
  const block = judging.blockOf(address);
  if (block === 'unreadable') return { state: 'unknown' };
  if (!block) return { state: judging.isPooled(address) ? 'noBlock' : 'outside' };
  const attributes = attributesAt(block, ordinalOf(block.prefix, address));
  return attributes && isHeld(attributes) ? { state: 'held', block, attributes } : { state: 'free', block };
}

/** What can be wrong with an endpoint of Podwire's: it names what it does not hold, or not all it holds, or its node is gone. */
export function judgeEndpoint(judging: Judging, { key, value }: StoredEndpoint): Finding[] {
  const endpoint = { key, value };
  const wrong = value.addresses.flatMap(({ address }) => judgeNamed(judging, endpoint, address));
  return [
    ...wrong,
    ...(wrong.length === 0 ? judgeCompleteness(judging, endpoint) : []),
    ...judgeGoneNode(judging, endpoint),
  ];
}

function judgeNamed(judging: Judging, endpoint: StoredEndpoint, address: Prefix): Finding[] {
  const { attachment } = endpoint.value;
  const standing = standingOf(judging, address);
  const text = `${formatAttachment(attachment)} uses ${formatAddress(address)}`;
  switch (standing.state) {
    case 'unknown':
      return [];
    case 'outside':
    case 'noBlock': {
      const remedy = noRemedy('there is no block to allocate it in; replace the container');
      const where = standing.state === 'outside' ? 'which is in no pool' : 'which is in no block';
      return [addressFault('addressUnallocated', { endpoint, address, remedy, explanation: `${text}, ${where}` })];
    }
    case 'free': {
      const effect = `allocates ${formatAddress(address)} to ${formatAttachment(attachment)} again`;
      const remedy = safely(effect, () => restore(judging, { endpoint, address, block: standing.block }));
      const explanation = `${text}, which is not allocated, so another container may get it`;
      return [addressFault('addressUnallocated', { endpoint, address, remedy, explanation })];
    }
    case 'held': {
      if (belongsTo(attachment)(standing.attributes)) return [];
      const remedy = noRemedy('which of the two uses it cannot be told; replace the container that should not');
      const explanation = `${text}, which is allocated to handle ${standing.attributes.handleId ?? 'none'}`;
      return [addressFault('addressOfSeveralOwners', { endpoint, address, remedy, explanation })];
    }
  }
}

interface Restoring {
  readonly endpoint: StoredEndpoint;
  readonly address: Prefix;
  readonly block: Block;
}

function restore({ view, nowMs }: Judging, { endpoint, address, block }: Restoring): Change[] {
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

/** All it names it holds; whether it names all it holds, as the blocks have it. */
function judgeCompleteness({ view }: Judging, { key, value }: StoredEndpoint): Finding[] {
  if (isPlainlyComplete(view, value)) return [];
  const [first, ...rest] = heldBy(view, value.attachment);
  if (!first) return [];
  const held = [first, ...rest] as const;
  const { addresses } = describeEndpoint(view, value.attachment, held);
  // What is named and not seen here is in a block that cannot be read, or one that the handle does not name: not the endpoint's fault.
  const seen = new Set(addresses.map(({ address }) => formatPrefix(address)));
  if (!value.addresses.every(({ address }) => seen.has(formatPrefix(address)))) return [];
  if (addressText({ addresses }) === addressText(value)) return [];
  const explanation = `endpoint ${key.namespace}/${key.name} says ${addressText(value)}, and its attachment holds ${addressText({ addresses })}`;
  const remedy = safely('writes the endpoint with what the blocks say', () => [
    ...touched(held),
    { type: 'put', record: { kind: 'endpoint', key, value: { ...value, addresses } } },
  ]);
  const subject = { type: 'endpoint', key } as const;
  return [makeFinding({ kind: 'endpointOutdated', subject, objects: objectsOf({ key, value }), explanation, remedy })];
}

/** The usual case, at the cost of a few look-ups: the handle has as many addresses as are named, each with its number. */
function isPlainlyComplete(view: View, { attachment, addresses }: Endpoint): boolean {
  const counts = [...(view.handle(handleId(attachment))?.blocks.values() ?? [])];
  if (counts.reduce((sum, count) => sum + count, 0) !== addresses.length) return false;
  return addresses.every(
    ({ address, block, sequenceNumber }) =>
      view.block(block)?.sequenceNumbers[ordinalOf(block, address)] === sequenceNumber,
  );
}

/** So that a release which is decided at the same moment loses, and does not leave the endpoint behind. */
function touched(held: readonly HeldAddress[]): Change[] {
  const blocks = new Map(held.map(({ block }) => [formatPrefix(block.prefix), block]));
  return [...blocks.values()].map((block) => ({ type: 'put', record: { kind: 'block', value: touchBlock(block) } }));
}

function addressText({ addresses }: Pick<Endpoint, 'addresses'>): string {
  return addresses.map(({ address, sequenceNumber }) => `${formatAddress(address)} (${sequenceNumber})`).join(', ');
}

function judgeGoneNode(judging: Judging, { key, value }: StoredEndpoint): Finding[] {
  if (!judging.isGone(value.nodeName)) return [];
  const held = heldBy(judging.view, value.attachment);
  const times = held.map(({ attributes }) => allocatedAtMs(attributes));
  const sinceMs = times.reduce((a, b) => (a === undefined || b === undefined ? undefined : Math.max(a, b)), 0);
  const remedy: Remedy = {
    type: 'release',
    effect: `removes the endpoint and gives back its ${counted(held.length, 'address', 'addresses')}`,
    sinceMs,
    changes: () => [
      ...giveBack(judging.view, held, judging.nowMs),
      { type: 'delete', record: { kind: 'endpoint', key, value } },
    ],
  };
  const explanation = `${formatAttachment(value.attachment)} has an endpoint on node ${value.nodeName}, which is gone`;
  const subject = { type: 'endpoint', key } as const;
  return [
    makeFinding({ kind: 'endpointOfGoneNode', subject, objects: objectsOf({ key, value }), explanation, remedy }),
  ];
}

function objectsOf({ key, value }: StoredEndpoint) {
  return [
    named.endpoint(key),
    ...value.addresses.map(({ address }) => named.address(address)),
    named.node(value.nodeName),
  ] as const;
}

interface AddressFault extends Pick<Finding, 'explanation' | 'remedy'> {
  readonly endpoint: StoredEndpoint | StoredForeignEndpoint;
  readonly address: Prefix;
}

function addressFault(kind: FindingKind, { endpoint, address, explanation, remedy }: AddressFault): Finding {
  const { key, value } = endpoint;
  return makeFinding({
    kind,
    subject: { type: 'endpoint', key },
    objects: [named.address(address), named.endpoint(key), named.node(value.nodeName)],
    explanation,
    remedy,
  });
}

/** What can be wrong with another writer's endpoint. Nothing of it is changed here: its writer would not know. */
export function judgeForeignEndpoint(judging: Judging, endpoint: StoredForeignEndpoint): Finding[] {
  const { key, value } = endpoint;
  const remedy = noRemedy('the endpoint is another writer’s; replace its container');
  const addresses = value.addresses.flatMap((address) => {
    const fault = foreignFault(judging, endpoint, address);
    if (!fault) return [];
    const explanation = `endpoint ${key.namespace}/${key.name} uses ${formatAddress(address)}, ${fault.reason}`;
    return [addressFault(fault.kind, { endpoint, address, explanation, remedy })];
  });
  if (!judging.isGone(value.nodeName)) return addresses;
  const explanation = `endpoint ${key.namespace}/${key.name} is on node ${value.nodeName}, which is gone`;
  const objects = [named.endpoint(key), named.node(value.nodeName)] as const;
  const subject = { type: 'endpoint', key } as const;
  return [...addresses, makeFinding({ kind: 'endpointOfGoneNode', subject, objects, explanation, remedy })];
}

function foreignFault(
  judging: Judging,
  { key, value }: StoredForeignEndpoint,
  address: Prefix,
): { readonly kind: FindingKind; readonly reason: string } | undefined {
  const standing = standingOf(judging, address);
  switch (standing.state) {
    case 'unknown':
      return undefined;
    case 'outside':
      return { kind: 'addressOutsidePools', reason: 'which is in no pool' };
    case 'noBlock':
    case 'free':
      return {
        kind: 'addressUnallocated',
        reason: 'which is not allocated, so another container may get it',
      };
    case 'held': {
      const { handleId: handle, owner } = standing.attributes;
      const container = attachmentOf(standing.attributes)?.containerId;
      const otherPod = owner.pod !== undefined && value.podName !== '' && owner.pod !== value.podName;
      const otherNamespace = owner.namespace !== undefined && owner.namespace !== key.namespace;
      const otherContainer = container !== undefined && container !== value.containerId;
      if (!otherPod && !otherNamespace && !otherContainer) return undefined;
      return { kind: 'addressOfSeveralOwners', reason: `which is allocated to handle ${handle ?? 'none'}` };
    }
  }
}
