import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';

import { allPages, type Service } from '../clients/services.js';
import { age, attachmentText, moment, momentAndAge } from '../output/words.js';
import { requireNamed } from './block.js';
import { NO_FILTER, resource, type Filter } from './resource.js';

/** Endpoints of Podwire's attachments. */
export async function listEndpoints(ipam: Service, filter: Partial<Filter>): Promise<Endpoint[]> {
  const endpoints = await listAllEndpoints(ipam, { ...NO_FILTER, ...filter });
  return endpoints.filter(isOfPodwire);
}

/** Endpoints of other writers have no attachment. */
function isOfPodwire({ attachment }: Endpoint): boolean {
  return attachment !== undefined;
}

/** Endpoints of all writers, also of pods with addresses of another IPAM plugin. */
export async function listAllEndpoints(
  ipam: Service,
  { node, pool, namespace, pod }: Filter = NO_FILTER,
): Promise<Endpoint[]> {
  const filter = { nodeName: node, poolName: pool, namespace, podName: pod };
  const pages = await allPages((page) => ipam.call(EndpointServiceService.listEndpoints, { ...page, ...filter }));
  return pages.flatMap(({ endpoints }) => endpoints);
}

/** `default/web-0`; empty where there is no pod. */
export function podText(endpoint: Endpoint | undefined): string {
  const pod = endpoint?.pod;
  return pod ? `${pod.namespace}/${pod.name}` : '';
}

/** Without the length of their prefixes, which are of one address each. */
export function addressesText(addresses: readonly string[]): string {
  return addresses.map((address) => address.replace(/\/\d+$/, '')).join(', ');
}

const writerOf = (endpoint: Endpoint): string => (isOfPodwire(endpoint) ? 'Podwire' : 'Calico');

export const WORKLOAD_ENDPOINT = resource<Endpoint>({
  isNamespaced: true,
  filters: ['node', 'pool', 'pod'],
  columns: [
    { head: 'NAME', isWide: true, cell: ({ name }) => name },
    { head: 'POD', cell: podText },
    { head: 'ADDRESSES', cell: ({ addresses }) => addressesText(addresses.map(({ address }) => address)) },
    { head: 'NODE', cell: ({ nodeName }) => nodeName },
    { head: 'HOST INTERFACE', cell: ({ hostInterfaceName }) => hostInterfaceName },
    { head: 'MAC', isWide: true, cell: ({ macAddress }) => macAddress },
    { head: 'AGE', cell: ({ createTime }, nowMs) => age(createTime, nowMs) },
    { head: 'WRITTEN BY', cell: writerOf },
    {
      head: 'ATTACHMENT',
      isWide: true,
      cell: (endpoint) =>
        isOfPodwire(endpoint) ? attachmentText(endpoint.attachment) : `endpoint ${endpoint.namespace}/${endpoint.name}`,
    },
  ],
  none: 'workloadendpoints: none',
  nameOf: ({ name }) => name,
  aliasOf: ({ pod }) => pod?.name ?? '',
  metadata: ({ namespace, uid, createTime }) => ({
    namespace,
    ...(uid === '' ? {} : { uid }),
    ...(createTime && { creationTimestamp: moment(createTime) }),
  }),
  spec: ({ pod, nodeName, attachment, addresses, hostInterfaceName, macAddress }) => ({
    orchestrator: pod ? 'k8s' : 'cni',
    node: nodeName,
    ...(attachment && { containerID: attachment.containerId, endpoint: attachment.interfaceName }),
    ...(pod && { pod: pod.name }),
    ipNetworks: addresses.map(({ address }) => address),
    interfaceName: hostInterfaceName,
    ...(macAddress === '' ? {} : { mac: macAddress }),
  }),
  details: (endpoint, nowMs) => [
    {
      kind: 'fields',
      fields: [
        ['Name', `${endpoint.namespace}/${endpoint.name}`],
        ['Pod', podText(endpoint)],
        ['Node', endpoint.nodeName],
        ['Attachment', attachmentText(endpoint.attachment)],
        ['Host interface', endpoint.hostInterfaceName],
        ['MAC', endpoint.macAddress],
        ['Written by', writerOf(endpoint)],
        ['Created', momentAndAge(endpoint.createTime, nowMs)],
      ],
    },
    {
      kind: 'table',
      columns: ['ADDRESS', 'BLOCK', 'POOL', { right: 'SEQUENCE' }],
      rows: endpoint.addresses.map(({ address, blockCidr, poolName, sequenceNumber }) => [
        ...[address, blockCidr, poolName],
        String(sequenceNumber),
      ]),
      none: 'addresses: none',
    },
  ],
  data: (endpoint, { json }) =>
    json.of(EndpointServiceService.listEndpoints, { endpoints: [endpoint], nextPageToken: '' }),
  list: async (filter, { ipam }) => {
    const endpoints = await listAllEndpoints(ipam, filter);
    if (endpoints.length === 0) await requireNamed(ipam, filter);
    return endpoints;
  },
  notFound: 'ENDPOINT_NOT_FOUND',
  instead: 'ADD and DEL of pods write them; "podwirectl release attachment" removes one',
});
