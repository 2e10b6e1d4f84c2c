import type { Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames, endpointNames } from '@podwire/shared/attachment/names';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { NetnsIdentity, PodIdentity } from './attributes.js';
import { wholeSeconds } from './block.js';

/** Calico's orchestrator part of an endpoint's name. */
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

/** The parts of an endpoint's name. */
type EndpointParts = Pick<Endpoint, 'attachment' | 'nodeName' | 'pod'>;

function joinParts(parts: readonly string[]): string {
  return parts.map((part) => part.replaceAll('-', '--')).join('-');
}

/**
 * The prefixes of the names of a node's endpoints, or of one pod's where its name is not empty. No other endpoint has
 * them.
 */
export function endpointPrefixes({ nodeName, podName }: { nodeName: string; podName: string }): string[] {
  const starts = podName === '' ? [[CNI], [KUBERNETES]] : [[KUBERNETES, podName]];
  return starts.map((start) => `${joinParts([nodeName, ...start])}-`);
}

/** The key as one text: `<namespace>/<name>`. Namespaces contain no slash. */
export function formatEndpointKey({ namespace, name }: EndpointKey): string {
  return `${namespace}/${name}`;
}

/** An endpoint without derived or allocated fields. */
interface EndpointIdentity {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly netns: NetnsIdentity | undefined;
  /** When the attachment got its first address, in epoch milliseconds; undefined when unknown. */
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

/** Whether both have the same namespace, or both have none. */
export function sameNetns(a: NetnsIdentity | undefined, b: NetnsIdentity | undefined): boolean {
  return a?.bootId === b?.bootId && a?.inode === b?.inode;
}

/** An address that an endpoint holds, and the allocation it came from. */
export interface EndpointAddress {
  /** Address of full length: /32 or /128. */
  readonly address: Prefix;
  readonly block: Prefix;
  readonly poolName: string;
  readonly sequenceNumber: bigint;
}

/**
 * The result of an attachment. Stored as a Calico workload endpoint, whose key all attachments of a pod's interface
 * share.
 */
export interface Endpoint {
  readonly attachment: Attachment;
  /** Empty when the time of the first address is unknown. */
  readonly uid: string;
  /** When the attachment got its first address, in epoch milliseconds; undefined when unknown. */
  readonly createTimeMs: number | undefined;
  readonly nodeName: string;
  readonly pod: PodIdentity | undefined;
  readonly addresses: readonly EndpointAddress[];
  readonly mac: Mac;
  readonly hostInterfaceName: string;
  readonly netns: NetnsIdentity | undefined;
  /**
   * The endpoints that this one replaced under its key, the latest first, until their release. When this one is
   * released, the latest gets the key back. Never empty. At most one is another writer's, the last. They have no such
   * list themselves.
   */
  readonly replaced?: readonly AnyEndpoint[] | undefined;
}

/**
 * An endpoint without allocations: of another writer, such as Calico's own plugin, or of a pod that Podwire wired with
 * addresses of another IPAM plugin. Missing or unreadable fields are empty.
 */
export interface ForeignEndpoint {
  /** The attachment's network, if Podwire wired it. */
  readonly network?: string;
  readonly nodeName: string;
  readonly containerId: string;
  /** Name of its interface inside the container. */
  readonly interfaceName: string;
  /** Name of its pod; empty outside Kubernetes. */
  readonly podName: string;
  /** Addresses of full length: /32 or /128. */
  readonly addresses: readonly Prefix[];
  readonly uid: string;
  /** Creation in epoch milliseconds. */
  readonly createTimeMs: number | undefined;
  readonly mac: string;
  readonly hostInterfaceName: string;
  /** Its stored text, for restoring it; empty for one to write. */
  readonly stored: string;
}

/** Where a workload endpoint is stored: Calico's `<namespace>/<name>`. */
export interface EndpointKey {
  readonly namespace: string;
  readonly name: string;
}

/** An endpoint of Podwire's, or of another writer. */
export type AnyEndpoint =
  | { readonly kind: 'endpoint'; readonly value: Endpoint }
  | { readonly kind: 'foreignEndpoint'; readonly value: ForeignEndpoint };
