import { Failure } from '@podwire/shared/failure/failure';

import type { Endpoint } from '../../allocator/records.js';
import type { EndpointKey } from '../../allocator/view.js';

/** Calico keeps the endpoints of containers outside Kubernetes in this namespace. */
const NAMESPACE_OUTSIDE_KUBERNETES = 'default';

/** What an endpoint's key is made from. */
export type EndpointIdentity = Pick<Endpoint, 'attachment' | 'nodeName' | 'pod'>;

/**
 * Where Calico stores the endpoint: `<node>-k8s-<pod>-<interface>` or `<node>-cni-<container ID>-<interface>`, dashes within a
 * part doubled (libcalico-go/lib/names/workloadendpoint.go).
 * @throws Failure INVALID_REQUEST when a part begins or ends with a dash: two endpoints could then share a name
 */
export function endpointKey({ attachment, nodeName, pod }: EndpointIdentity): EndpointKey {
  const parts = pod
    ? [nodeName, 'k8s', pod.name, attachment.interfaceName]
    : [nodeName, 'cni', attachment.containerId, attachment.interfaceName];
  return { namespace: pod?.namespace ?? NAMESPACE_OUTSIDE_KUBERNETES, name: parts.map(escapePart).join('-') };
}

function escapePart(part: string): string {
  if (part === '' || part.startsWith('-') || part.endsWith('-') || part.includes('/'))
    throw new Failure(
      'INVALID_REQUEST',
      `"${part}" cannot be part of a workload endpoint's name: use a node, pod, container and interface name that is not empty, holds no slash, and neither begins nor ends with a dash`,
    );
  return part.replaceAll('-', '--');
}
