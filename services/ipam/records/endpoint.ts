import type { Attachment, AttachmentFault } from '@podwire/shared/attachment/attachment';
import { derivedNames, endpointNames } from '@podwire/shared/attachment/names';
import { addressAt, hostPrefix } from '@podwire/shared/net/prefix';

import type { Endpoint, EndpointAddress, NetnsIdentity, PodIdentity, Pool } from '../allocator/records.js';
import type { HeldAddress } from '../blocks/holding.js';
import { poolOf } from '../pools/pools.js';
import { allocatedAtMs, holderOf } from './attributes.js';
import { wholeSeconds } from './block.js';
import type { EndpointKey, View } from './view.js';

/** Orchestrators, as Calico calls them in an endpoint's name. */
const KUBERNETES = 'k8s';
const CNI = 'cni';

/** Calico keeps the endpoints of containers outside Kubernetes in this namespace. */
const NAMESPACE_OUTSIDE_KUBERNETES = 'default';

/**
 * Where the endpoint is stored: `<node>-k8s-<pod>-<interface>` or `<node>-cni-<container ID>-<interface>`, dashes within a part
 * doubled (Calico's libcalico-go/lib/names/workloadendpoint.go). Not one to one: sandboxes of one pod share a key, and so does one
 * interface on several networks.
 */
export function endpointKey({ attachment, nodeName, pod }: EndpointParts): EndpointKey {
  const { containerId, interfaceName } = attachment;
  const parts = pod ? [nodeName, KUBERNETES, pod.name, interfaceName] : [nodeName, CNI, containerId, interfaceName];
  return { namespace: pod?.namespace ?? NAMESPACE_OUTSIDE_KUBERNETES, name: joinParts(parts) };
}

/** What an endpoint's name is made of. */
type EndpointParts = Pick<Endpoint, 'attachment' | 'nodeName' | 'pod'>;

function joinParts(parts: readonly string[]): string {
  return parts.map((part) => part.replaceAll('-', '--')).join('-');
}

/** What the names of a node's endpoints begin with; of one pod's, where its name is not empty. No other node's or pod's do. */
export function endpointPrefixes({ nodeName, podName }: { nodeName: string; podName: string }): string[] {
  const starts = podName === '' ? [[CNI], [KUBERNETES]] : [[KUBERNETES, podName]];
  return starts.map((start) => `${joinParts([nodeName, ...start])}-`);
}

/**
 * Why parts of an attachment cannot be in its endpoint's name: a dash at an end of a part would be taken for one between parts, so
 * that two attachments might share a name. Calico refuses them too. Names of nodes and pods have none there.
 */
export function endpointNameFaults({ attachment, pod }: EndpointParts): AttachmentFault[] {
  const fields = pod ? (['interfaceName'] as const) : (['containerId', 'interfaceName'] as const);
  return fields.flatMap((field) => {
    const text = attachment[field];
    const reason = 'begins or ends with "-", which the name of a workload endpoint cannot hold';
    return text.startsWith('-') || text.endsWith('-') ? [{ field, reason }] : [];
  });
}

/** The key in one text: `<namespace>/<name>`. Namespaces hold no slash. */
export function formatEndpointKey({ namespace, name }: EndpointKey): string {
  return `${namespace}/${name}`;
}

/** An endpoint without what is derived or allocated. */
interface EndpointIdentity {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
  /** When the attachment got its first address, in epoch milliseconds; undefined where that is not known. */
  readonly createdAtMs: number | undefined;
}

/** The endpoint of an attachment that holds these addresses; UID, interface name and MAC are derived. */
export function makeEndpoint(identity: EndpointIdentity, addresses: readonly EndpointAddress[]): Endpoint {
  const { attachment, nodeName, pod, netns, createdAtMs } = identity;
  const isDated = createdAtMs !== undefined;
  const names = isDated ? endpointNames(attachment, createdAtMs) : { uid: '', ...derivedNames(attachment) };
  const { uid, hostInterfaceName, mac } = names;
  const createTimeMs = isDated ? wholeSeconds(createdAtMs) : undefined;
  return { uid, createTimeMs, addresses, hostInterfaceName, mac, attachment, nodeName, pod, netns };
}

/** What is recorded of this very attachment under a key: its endpoint, or the one that another has replaced. */
export function recordedEndpoint(view: View, key: EndpointKey, attachment: Attachment): Endpoint | undefined {
  const stored = view.endpoint(key);
  if (!stored || sameAttachment(stored.attachment, attachment)) return stored;
  const [replaced] = (stored.replaced ?? []).flatMap((one) =>
    one.kind === 'endpoint' && sameAttachment(one.value.attachment, attachment) ? [one.value] : [],
  );
  return replaced;
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
  const stored = recordedEndpoint(view, endpointKey({ attachment, ...holder }), attachment);
  const createdAtMs = allocatedAtMs(held[0].attributes);
  const identity = { attachment, netns: stored?.netns, ...holder, pod: stored?.pod ?? holder.pod, createdAtMs };
  const addresses = held.map((address) => endpointAddress(view, address));
  const made = makeEndpoint(identity, inOrderOf(stored?.addresses ?? [], addresses));
  return stored && stored.uid !== '' ? { ...made, uid: stored.uid, createTimeMs: stored.createTimeMs } : made;
}

export function endpointAddress(
  view: View,
  { block, ordinal }: Pick<HeldAddress, 'block' | 'ordinal'>,
): EndpointAddress {
  const pool = poolOf(view.pools(), block.prefix);
  return {
    address: hostPrefix(addressAt(block.prefix, ordinal)),
    block: block.prefix,
    poolName: pool?.name ?? '',
    sequenceNumber: block.sequenceNumbers[ordinal] ?? 0n,
  };
}

/**
 * A stored endpoint with the names of the pools that its blocks lie in now: pools are split, deleted, and made anew. Itself where
 * these are the stored ones.
 */
export function withPoolNames(pools: readonly Pool[], endpoint: Endpoint): Endpoint {
  const names = endpoint.addresses.map(({ block }) => poolOf(pools, block)?.name ?? '');
  if (endpoint.addresses.every(({ poolName }, index) => poolName === names[index])) return endpoint;
  const addresses = endpoint.addresses.map((address, index) => ({ ...address, poolName: names[index] ?? '' }));
  return { ...endpoint, addresses };
}

/** The addresses in the order in which they were asked for, as the stored ones are. */
function inOrderOf(stored: readonly EndpointAddress[], addresses: readonly EndpointAddress[]): EndpointAddress[] {
  const place = ({ address }: EndpointAddress): number => {
    const index = stored.findIndex((other) => other.address.value === address.value);
    return index < 0 ? stored.length : index;
  };
  return addresses.toSorted((a, b) => place(a) - place(b));
}

/** Whether two tell one namespace, or neither tells any. */
export function sameNetns(a: NetnsIdentity | undefined, b: NetnsIdentity | undefined): boolean {
  return a?.bootId === b?.bootId && a?.inode === b?.inode;
}

export function sameAttachment(a: Attachment, b: Attachment): boolean {
  return a.network === b.network && a.containerId === b.containerId && a.interfaceName === b.interfaceName;
}
