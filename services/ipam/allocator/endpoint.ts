import type { Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { addressAt, hostPrefix, prefixContains } from '@podwire/shared/net/prefix';

import { holderOf } from './attributes.js';
import type { HeldAddress } from './holding.js';
import type { Endpoint, EndpointAddress, NetnsIdentity, PodIdentity } from './records.js';
import type { EndpointKey, View } from './view.js';

/** Calico keeps the endpoints of containers outside Kubernetes in this namespace. */
const NAMESPACE_OUTSIDE_KUBERNETES = 'default';

/**
 * Where the endpoint is stored: `<node>-k8s-<pod>-<interface>` or `<node>-cni-<container ID>-<interface>`, dashes within a part
 * doubled (Calico's libcalico-go/lib/names/workloadendpoint.go). Not one to one: sandboxes of one pod share a key.
 */
export function endpointKey({ attachment, nodeName, pod }: Omit<EndpointIdentity, 'netns'>): EndpointKey {
  const { containerId, interfaceName } = attachment;
  const parts = pod ? [nodeName, 'k8s', pod.name, interfaceName] : [nodeName, 'cni', containerId, interfaceName];
  const name = parts.map((part) => part.replaceAll('-', '--')).join('-');
  return { namespace: pod?.namespace ?? NAMESPACE_OUTSIDE_KUBERNETES, name };
}

/** An endpoint without what is derived or allocated. */
export interface EndpointIdentity {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
}

/** The endpoint of an attachment that holds these addresses; interface name and MAC are derived from the attachment. */
export function makeEndpoint(identity: EndpointIdentity, addresses: readonly EndpointAddress[]): Endpoint {
  const { attachment } = identity;
  return { ...identity, addresses, mac: podMac(attachment), hostInterfaceName: hostInterfaceName(attachment) };
}

/** The endpoint stored for this very attachment, not for another container of its pod. */
export function storedEndpoint(view: View, key: EndpointKey, attachment: Attachment): Endpoint | undefined {
  const stored = view.endpoint(key);
  return stored && sameAttachment(stored.attachment, attachment) ? stored : undefined;
}

/**
 * The endpoint of an attachment as the blocks tell it, completed from the stored one where that is still its own.
 * @param held - at least one
 */
export function describeEndpoint(
  view: View,
  attachment: Attachment,
  held: readonly [HeldAddress, ...HeldAddress[]],
): Endpoint {
  const holder = holderOf(held[0].attributes);
  const stored = storedEndpoint(view, endpointKey({ attachment, ...holder }), attachment);
  const identity = { attachment, netns: stored?.netns, ...holder, pod: stored?.pod ?? holder.pod };
  const addresses = held.map((address) => endpointAddress(view, address));
  return makeEndpoint(identity, inOrderOf(stored?.addresses ?? [], addresses));
}

export function endpointAddress(
  view: View,
  { block, ordinal }: Pick<HeldAddress, 'block' | 'ordinal'>,
): EndpointAddress {
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, block.prefix));
  return {
    address: hostPrefix(addressAt(block.prefix, ordinal)),
    block: block.prefix,
    poolName: pool?.name ?? '',
    sequenceNumber: block.sequenceNumbers.get(ordinal) ?? 0n,
  };
}

/** The addresses in the order in which they were asked for, as the stored ones are. */
function inOrderOf(stored: readonly EndpointAddress[], addresses: readonly EndpointAddress[]): EndpointAddress[] {
  const place = ({ address }: EndpointAddress): number => {
    const index = stored.findIndex((other) => other.address.value === address.value);
    return index < 0 ? stored.length : index;
  };
  return addresses.toSorted((a, b) => place(a) - place(b));
}

function sameAttachment(a: Attachment, b: Attachment): boolean {
  return a.network === b.network && a.containerId === b.containerId && a.interfaceName === b.interfaceName;
}
