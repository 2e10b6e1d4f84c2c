import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf, parsePrefix } from '@podwire/shared/net/prefix';

import { endpointAt } from '../blocks/endpoint-key.js';
import { addressOf } from '../records/block.js';
import {
  describeEndpoint,
  heldAddressesOf,
  recordedEndpoint,
  sameAttachment,
  touchBlocks,
} from '../records/derived-endpoint.js';
import { releaseHeld } from '../blocks/release-changes.js';
import {
  allocatedAtMs,
  attachmentOf,
  holderOf,
  isVirtualMachine,
  type AllocationAttributes,
} from '../records/attributes.js';
import { attributesAt, heldAddressesIn, isHeld, type Block, type HeldAddress, type Ordinal } from '../records/block.js';
import { endpointKey, formatEndpointKey, type EndpointKey } from '../records/endpoint.js';
import { cannotRead } from '../records/absence.js';
import type { TunnelKind } from '../records/node.js';
import { isLease, leaseBootId } from '../records/lease.js';
import { reservedIn } from '../reservations/reservations.js';
import { enclosingBlocks } from './block-findings.js';
import { bareHandle, type AuditContext } from './context.js';
import { makeFinding, objectOf, noRemedy, safeRemedy, type Finding, type FindingKind, type Remedy } from './finding.js';

/** Handle of the addresses that Windows keeps for itself in each block, in any case (Calico's libcalico-go/lib/ipam). */
const WINDOWS_RESERVED = 'windows-reserved-ipam-handle';

const TUNNELS: ReadonlySet<string> = new Set<TunnelKind>([
  'ipipTunnelAddress',
  'vxlanTunnelAddress',
  'vxlanV6TunnelAddress',
]);

/**
 * Faults of held addresses of a block: without a user, or with two. IPAM knows users only from endpoints and nodes, its own
 * and other writers'; an address whose users are unknowable is not reported as unused.
 */
export function findAddressFaults(context: AuditContext, block: Block): Finding[] {
  return findHeldAddressFaults(
    context,
    block,
    heldAddressesIn(block, () => true),
  );
}

/** Faults of a single address of the block. */
export function findAddressFaultsAt(context: AuditContext, block: Block, ordinal: Ordinal): Finding[] {
  const held = heldAddressesIn(block, () => true).filter((each) => each.ordinal === ordinal);
  return findHeldAddressFaults(context, block, held);
}

function findHeldAddressFaults(context: AuditContext, block: Block, all: readonly HeldAddress[]): Finding[] {
  const around = enclosingBlocks(context, block);
  const reserved = reservedIn(context.view);
  const touched = reserved.overlaps(block.prefix);
  return all.flatMap((held) => [
    ...findUseFaults(context, held),
    ...findSecondOwners(held, around),
    ...(touched && reserved.contains(addressOf(held)) ? [reservedInUse(held)] : []),
  ]);
}

function findUseFaults(context: AuditContext, held: HeldAddress): Finding[] {
  const use = addressUse(context, held);
  const holder = holderText(held);
  switch (use.state) {
    case 'used':
      return [];
    case 'unexplained': {
      const explanation = `${holder}, ${use.reason}`;
      return [heldAddressFinding('allocationUnexplained', held, { explanation, remedy: noRemedy(use.remedy) })];
    }
    case 'endpointMissing':
      return endpointMissing(context, use.attachment);
    case 'leaseWithoutBoot': {
      const explanation = `${holder}, and does not name the boot of its node`;
      return [heldAddressFinding('leaseWithoutBoot', held, { explanation, remedy: noRemedy(NO_BOOT_REMEDY) })];
    }
    case 'replaced':
    case 'unused':
    case 'unusedByNode':
    case 'leaseOfGoneNode': {
      const sinceMs = allocatedAtMs(held.attributes);
      if (sinceMs !== undefined && context.nowMs - sinceMs < context.graceMs) return [];
      const kind = UNUSED_KINDS[use.state];
      const remedy = use.state === 'replaced' ? noRemedy(REPLACED_REMEDY) : releaseOf(context, held);
      return [heldAddressFinding(kind, held, { explanation: `${holder}, ${use.reason}`, remedy })];
    }
  }
}

const UNUSED_KINDS = {
  replaced: 'allocationUnused',
  unused: 'allocationUnused',
  unusedByNode: 'tunnelAllocationUnused',
  leaseOfGoneNode: 'leaseOfGoneNode',
} as const satisfies Record<string, FindingKind>;

const NO_BOOT_REMEDY = 'its node frees it when it leases addresses again; release it if the node leases none';

const REPLACED_REMEDY =
  'only its node knows whether the earlier container still runs; release the attachment once it is gone';

const RUNNING_REMEDY = 'its node runs, and returns it if no pod there has it';

type Use =
  | { readonly state: 'used' }
  | { readonly state: 'unexplained'; readonly reason: string; readonly remedy: string }
  /** The attachment has no endpoint, but its container may still exist. */
  | { readonly state: 'endpointMissing'; readonly attachment: Attachment }
  /** Another container of the pod has its endpoint; the earlier container may still exist. */
  | { readonly state: 'replaced'; readonly reason: string }
  | { readonly state: 'unused' | 'unusedByNode' | 'leaseOfGoneNode'; readonly reason: string }
  /** A node holds it for a pod, and does not say since which boot. */
  | { readonly state: 'leaseWithoutBoot' };

const OF_UNKNOWN_ORIGIN: Use = {
  state: 'unexplained',
  reason: 'and no container or node is known to use it',
  remedy: 'IPAM cannot determine its user; release it if it is unused',
};

const OF_VIRTUAL_MACHINE: Use = {
  state: 'unexplained',
  reason: 'which belongs to a virtual machine and stays allocated while it is stopped',
  remedy: 'IPAM cannot determine whether the virtual machine exists; release the handle once it is deleted',
};

const USED: Use = { state: 'used' };

function addressUse(context: AuditContext, held: HeldAddress): Use {
  const { attributes, block } = held;
  const { owner, handleId } = attributes;
  if (block.owner?.kind === 'virtual' || handleId?.toLowerCase() === WINDOWS_RESERVED) return USED;
  if (isLease(attributes)) return useAsLease(context, attributes);
  if (owner.type !== undefined && TUNNELS.has(owner.type)) return useByNode(context, held, owner.type);
  const attachment = attachmentOf(attributes);
  if (attachment) return useByAttachment(context, attributes, attachment);
  const { nodeName, pod } = holderOf(attributes);
  if (context.hasUnreadable('endpoint') || context.users.hasAddress(addressOf(held))) return USED;
  if (isVirtualMachine(attributes)) return OF_VIRTUAL_MACHINE;
  if (!pod) return OF_UNKNOWN_ORIGIN;
  const containerId = handleId?.slice(handleId.lastIndexOf('.') + 1) ?? '';
  const known =
    (containerId !== '' && context.users.hasContainer(containerId)) ||
    context.users.hasPod(nodeName, pod.namespace, pod.name);
  return known ? USED : { state: 'unused', reason: 'and no endpoint names the address, the container or the pod' };
}

/** A node may give a leased address to a pod at any time, so only a node that is gone does not use it. */
function useAsLease(context: AuditContext, attributes: AllocationAttributes): Use {
  const { nodeName } = holderOf(attributes);
  if (context.isNodeGone(nodeName)) return { state: 'leaseOfGoneNode', reason: `and node ${nodeName} is gone` };
  return leaseBootId(attributes) === '' ? { state: 'leaseWithoutBoot' } : USED;
}

/** The use of an address that Podwire allocated to a container. */
function useByAttachment(context: AuditContext, attributes: AllocationAttributes, attachment: Attachment): Use {
  const holder = holderOf(attributes);
  const key = endpointKey({ attachment, ...holder });
  if (cannotRead(context.view, { kind: 'endpoint', key })) return USED;
  const current = endpointAt(context.view, key);
  const container = current?.kind === 'endpoint' ? current.value.attachment.containerId : current?.value.containerId;
  if (current?.kind === 'endpoint' && sameAttachment(current.value.attachment, attachment)) return USED;
  const { nodeName } = holder;
  if (context.isNodeGone(nodeName)) return { state: 'unused', reason: `and node ${nodeName} is gone` };
  if (container === undefined) return { state: 'endpointMissing', attachment };
  // One container on two networks: one was not attached, and its release restores the endpoint of the other.
  if (container === attachment.containerId) return USED;
  if (isOfEarlierBoot(context, key, attachment))
    return { state: 'unused', reason: `and node ${nodeName} has restarted since` };
  return {
    state: 'replaced',
    reason: `and its endpoint ${formatEndpointKey(key)} now belongs to container ${container}`,
  };
}

/** Whether a replaced endpoint's namespace is from an earlier boot than its replacement's: no namespace outlives a boot. */
function isOfEarlierBoot({ view }: AuditContext, key: EndpointKey, attachment: Attachment): boolean {
  const earlier = recordedEndpoint(view, key, attachment)?.netns?.bootId;
  const current = view.endpoint(key)?.netns?.bootId;
  return earlier !== undefined && current !== undefined && earlier !== current;
}

/** A concurrent release conflicts on the blocks, so it cannot leave the endpoint behind. */
function endpointMissing({ view }: AuditContext, attachment: Attachment): Finding[] {
  const [first, ...rest] = heldAddressesOf(view, attachment);
  if (!first) return [];
  const held = [first, ...rest] as const;
  const value = describeEndpoint(view, attachment, held);
  const key = endpointKey(value);
  const addresses = value.addresses.map(({ address }) => objectOf.address(address));
  return [
    makeFinding({
      kind: 'endpointMissing',
      subject: { type: 'address', block: first.block.prefix, ordinal: first.ordinal },
      objects: [objectOf.endpoint(key), ...addresses, objectOf.node(value.nodeName)],
      explanation: `${formatAttachment(attachment)} holds ${addresses.map(({ name }) => name).join(', ')}, and has no endpoint`,
      remedy: safeRemedy('rewrites the endpoint from the blocks', () => [
        ...touchBlocks(held),
        { type: 'put', record: { kind: 'endpoint', key, value } },
      ]),
    }),
  ];
}

function useByNode(context: AuditContext, held: HeldAddress, kind: string): Use {
  const { node: nodeName = '' } = held.attributes.owner;
  const { view } = context;
  const node = view.node(nodeName);
  if (!node) {
    const gone = context.isNodeGone(nodeName);
    return gone ? { state: 'unusedByNode', reason: `and node ${nodeName} is gone` } : USED;
  }
  const address = addressOf(held);
  for (const tunnel of node.tunnels.values()) if (tunnel.address.value === address.value) return USED;
  return { state: 'unusedByNode', reason: `and node ${nodeName} does not name it as its ${kind}` };
}

/**
 * Releases all addresses of the handle if none is in use: a container has one handle for all its addresses, so one in use
 * shows that the container runs.
 */
function releaseOf(context: AuditContext, held: HeldAddress): Remedy {
  if (context.running.mayUse(held.attributes)) return noRemedy(RUNNING_REMEDY);
  const all = heldWith(context, held);
  const inUse = all.find((other) => addressUse(context, other).state === 'used');
  if (inUse) return noRemedy(`${formatAddress(addressOf(inUse))} of the same handle is in use`);
  const times = all.map(({ attributes }) => allocatedAtMs(attributes));
  const sinceMs = times.reduce((a, b) => (a === undefined || b === undefined ? undefined : Math.max(a, b)));
  const addresses = all.map((other) => formatAddress(addressOf(other))).join(', ');
  const effect = `releases ${addresses}`;
  return { type: 'release', effect, sinceMs, changes: () => releaseHeld(context.view, all, context.nowMs) };
}

/** The addresses of the same handle, this one included. */
function heldWith({ view }: AuditContext, held: HeldAddress): HeldAddress[] {
  const { handleId } = held.attributes;
  if (handleId === undefined) return [held];
  const bare = bareHandle(handleId);
  const objectOf = view.handle(bare) ?? view.handle(handleId);
  const otherBlocks = [...(objectOf?.blocks.keys() ?? [])].flatMap((cidr) => {
    const parsed = parsePrefix(cidr);
    const block = parsed.ok ? view.block(parsed.prefix) : undefined;
    return block && formatPrefix(block.prefix) !== formatPrefix(held.block.prefix) ? [block] : [];
  });
  return [held.block, ...otherBlocks].flatMap((block) =>
    heldAddressesIn(
      block,
      (attributes) => attributes.handleId !== undefined && bareHandle(attributes.handleId) === bare,
    ),
  );
}

/** A block inside a larger one has the same addresses. */
function findSecondOwners(held: HeldAddress, around: readonly Block[]): Finding[] {
  const address = addressOf(held);
  return around.flatMap((outer) => {
    const ordinal = ordinalOf(outer.prefix, address);
    const attributes = attributesAt(outer, ordinal);
    if (!attributes || !isHeld(attributes)) return [];
    const explanation = `${holderText(held)}, and is also allocated in block ${formatPrefix(outer.prefix)} to handle ${attributes.handleId ?? 'none'}`;
    const remedy = noRemedy('IPAM cannot determine which of the two uses it; release the unused one');
    return [heldAddressFinding('addressOfSeveralOwners', held, { explanation, remedy })];
  });
}

function reservedInUse(held: HeldAddress): Finding {
  const explanation = `${holderText(held)}, and is reserved`;
  const remedy = noRemedy(
    'a reservation prevents automatic allocation only; earlier and explicitly requested allocations stay',
  );
  return heldAddressFinding('reservedInUse', held, { explanation, remedy });
}

function holderText(held: HeldAddress): string {
  const { attributes } = held;
  const attachment = attachmentOf(attributes);
  const holder = attachment ? formatAttachment(attachment) : `handle ${attributes.handleId ?? 'none'}`;
  return `address ${formatAddress(addressOf(held))} is allocated to ${holder}`;
}

function heldAddressFinding(
  kind: FindingKind,
  held: HeldAddress,
  { explanation, remedy }: Pick<Finding, 'explanation' | 'remedy'>,
): Finding {
  const { attributes, block, ordinal } = held;
  const { nodeName } = holderOf(attributes);
  return makeFinding({
    kind,
    subject: { type: 'address', block: block.prefix, ordinal },
    objects: [
      objectOf.address(addressOf(held)),
      objectOf.block(block.prefix),
      ...(attributes.handleId === undefined ? [] : [objectOf.handle(attributes.handleId)]),
      ...(nodeName === '' ? [] : [objectOf.node(nodeName)]),
    ],
    explanation,
    remedy,
  });
}
