import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { addressAt, comparePrefixes, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import { allocatedAtMs, belongsTo, holderOf } from './attributes.js';
import { attributesAt, ordinalsWhere, touchBlock, type HeldAddress } from './block.js';
import { endpointKey, makeEndpoint, type Endpoint, type EndpointAddress, type EndpointKey } from './endpoint.js';
import { blocksOf } from './handle-counts.js';
import { poolOf, type Pool } from './pool.js';
import type { Change, View } from './view.js';

/** An attachment's endpoint, as its addresses in the blocks determine it. */

/** The addresses of an attachment, IPv4 before IPv6. */
export function heldAddressesOf(view: View, attachment: Attachment): HeldAddress[] {
  const handle = view.handle(handleId(attachment));
  if (!handle) return [];
  const belongs = belongsTo(attachment);
  return blocksOf(view, handle)
    .sort((a, b) => comparePrefixes(a.prefix, b.prefix))
    .flatMap((block) =>
      ordinalsWhere(block, belongs).flatMap((ordinal) => {
        const attributes = attributesAt(block, ordinal);
        return attributes ? [{ block, ordinal, attributes }] : [];
      }),
    );
}

/** Makes a concurrent release lose its comparison. Otherwise the records written here would be left over. */
export function touchBlocks(held: readonly HeldAddress[]): Change[] {
  const blocks = new Map(held.map(({ block }) => [formatPrefix(block.prefix), block]));
  return [...blocks.values()].map((block) => ({ type: 'put', record: { kind: 'block', value: touchBlock(block) } }));
}

/** The endpoint of exactly this attachment under a key: the current one, or a replaced one. */
export function recordedEndpoint(view: View, key: EndpointKey, attachment: Attachment): Endpoint | undefined {
  const stored = view.endpoint(key);
  if (!stored || sameAttachment(stored.attachment, attachment)) return stored;
  const [replaced] = (stored.replaced ?? []).flatMap((one) =>
    one.kind === 'endpoint' && sameAttachment(one.value.attachment, attachment) ? [one.value] : [],
  );
  return replaced;
}

/**
 * The endpoint of an attachment as derived from the blocks, completed from the stored one if that still belongs to it.
 * @param held - at least one
 */
export function describeEndpoint(
  view: View,
  attachment: Attachment,
  held: readonly [HeldAddress, ...HeldAddress[]],
): Endpoint {
  const holder = holderOf(held[0].attributes);
  const stored = recordedEndpoint(view, endpointKey({ attachment, ...holder }), attachment);
  const createdAtMs = allocatedAtMs(held[0].attributes);
  const identity = { attachment, netns: stored?.netns, ...holder, pod: stored?.pod ?? holder.pod, createdAtMs };
  const addresses = held.map((address) => endpointAddress(view, address));
  const made = makeEndpoint(identity, sortAsStored(stored?.addresses ?? [], addresses));
  return stored && stored.uid !== '' ? { ...made, uid: stored.uid, createTimeMs: stored.createTimeMs } : made;
}

export function endpointAddress(view: View, held: Pick<HeldAddress, 'block' | 'ordinal'>): EndpointAddress {
  return addressIn(view.pools(), held);
}

export function addressIn(
  pools: readonly Pool[],
  { block, ordinal }: Pick<HeldAddress, 'block' | 'ordinal'>,
): EndpointAddress {
  const pool = poolOf(pools, block.prefix);
  return {
    address: hostPrefix(addressAt(block.prefix, ordinal)),
    block: block.prefix,
    poolName: pool?.name ?? '',
    sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
  };
}

/**
 * A stored endpoint with the current names of the pools of its blocks: pools can be split, deleted and recreated.
 * Returns the same object when the names are unchanged.
 */
export function withPoolNames(pools: readonly Pool[], endpoint: Endpoint): Endpoint {
  const names = endpoint.addresses.map(({ block }) => poolOf(pools, block)?.name ?? '');
  if (endpoint.addresses.every(({ poolName }, index) => poolName === names[index])) return endpoint;
  const addresses = endpoint.addresses.map((address, index) => ({ ...address, poolName: names[index] ?? '' }));
  return { ...endpoint, addresses };
}

/** The addresses in the requested order, as the stored ones are. */
function sortAsStored(stored: readonly EndpointAddress[], addresses: readonly EndpointAddress[]): EndpointAddress[] {
  const position = ({ address }: EndpointAddress): number => {
    const index = stored.findIndex((other) => other.address.value === address.value);
    return index < 0 ? stored.length : index;
  };
  return addresses.toSorted((a, b) => position(a) - position(b));
}

export function sameAttachment(a: Attachment, b: Attachment): boolean {
  return a.network === b.network && a.containerId === b.containerId && a.interfaceName === b.interfaceName;
}
