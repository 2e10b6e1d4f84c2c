import { handleId } from '@podwire/shared/attachment/names';
import { formatAddress } from '@podwire/shared/net/address';

import type { AddressRelease } from '../addresses/release.js';
import type { Endpoint, EndpointKey } from '../records/endpoint.js';

/** A pod's addresses as one attachment holds them. */
export interface PodAttachment {
  /** Names the attachment and its allocations: a new ADD or another allocation makes another identity. */
  readonly identity: string;
  readonly nodeName: string;
  readonly namespace: string;
  readonly podName: string;
  readonly addresses: readonly string[];
  readonly releases: readonly AddressRelease[];
}

/**
 * UID of a pod that the API server made. UIDs of static pods are hashes without dashes: such a pod runs without the API
 * server, and its mirror there may be missing.
 */
const API_POD_UID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** The key of a pod, of which a namespace has only one of each name: `default/web-0`. */
export function podKey({ namespace, name }: { readonly namespace: string; readonly name: string }): string {
  return `${namespace}/${name}`;
}

/** Whether an endpoint belongs to a pod whose absence in the API server shows that it was deleted. */
export function isApiPod({ pod }: Endpoint): boolean {
  return pod !== undefined && API_POD_UID.test(pod.uid);
}

/** The attachments of an endpoint's key: the current and the replaced ones, each of an API server's pod. */
export function attachmentsOf(key: EndpointKey, endpoint: Endpoint): PodAttachment[] {
  const replaced = (endpoint.replaced ?? []).flatMap((each) => (each.kind === 'endpoint' ? [each.value] : []));
  return [endpoint, ...replaced].filter(isApiPod).map((each) => attachmentOf(key, each));
}

function attachmentOf(key: EndpointKey, endpoint: Endpoint): PodAttachment {
  const { attachment, addresses, netns, nodeName, pod } = endpoint;
  const handle = handleId(attachment);
  const texts = addresses.map(({ address }) => formatAddress(address));
  const allocations = addresses.map(({ sequenceNumber }, index) => `${texts[index]}#${sequenceNumber}`);
  const namespace = netns === undefined ? '' : `${netns.bootId}:${netns.inode}`;
  return {
    identity: [nodeName, handle, attachment.interfaceName, namespace, ...allocations].join(' '),
    nodeName,
    namespace: key.namespace,
    podName: pod?.name ?? '',
    addresses: texts,
    releases: addresses.map(({ address, sequenceNumber }) => ({ address, handleId: handle, sequenceNumber, netns })),
  };
}
