import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';

import { allPages, type Service } from '../clients/services.js';
import { POD_NAME, text, type PodName } from '../command-line/forms.js';
import type { Option, Verb } from '../command-line/verb.js';
import type { Table } from '../output/report.js';
import { age, attachmentText } from '../output/words.js';
import { NODE, POOL, requireNamed, type Filter } from './blocks.js';

const POD: Option<PodName> = { name: '--pod', form: POD_NAME, about: 'only those of this pod (all)' };
const NAMESPACE: Option<string> = {
  name: '--namespace',
  form: text('NAME'),
  about: 'only those of this namespace (all). No effect with --pod',
};

export const endpointsList: Verb = {
  name: 'endpoints list',
  about: 'the workload endpoints of pods: addresses, node, interface and writer',
  details:
    'Includes endpoints that Calico stored in the same datastore. "podwirectl history" shows earlier addresses of a pod.',
  options: [POD, NAMESPACE, NODE, POOL],
  examples: ['endpoints list --node node-1', 'endpoints list --pod default/web-0'],
  run: async (input, { ipam, json, clock }) => {
    const pod = input.get(POD);
    const filter = {
      nodeName: input.get(NODE) ?? '',
      namespace: pod?.namespace ?? input.get(NAMESPACE) ?? '',
      podName: pod?.name ?? '',
      poolName: input.get(POOL) ?? '',
    };
    const endpoints = await listAllEndpoints(ipam, filter);
    if (endpoints.length === 0) await requireNamed(ipam, filter);
    return {
      sections: [endpointTable(endpoints, clock.nowMs())],
      data: () => json.of(EndpointServiceService.listEndpoints, { endpoints, nextPageToken: '' }),
    };
  },
};

/** Filter of endpoints; an empty name does not filter. */
interface EndpointFilter extends Filter {
  readonly namespace: string;
  readonly podName: string;
}

/** Endpoints of Podwire's attachments. */
export async function listEndpoints(ipam: Service, filter: EndpointFilter): Promise<Endpoint[]> {
  const endpoints = await listAllEndpoints(ipam, filter);
  return endpoints.filter(isOfPodwire);
}

/** Endpoints of other writers have no attachment. */
function isOfPodwire({ attachment }: Endpoint): boolean {
  return attachment !== undefined;
}

async function listAllEndpoints(ipam: Service, filter: EndpointFilter): Promise<Endpoint[]> {
  const pages = await allPages((page) => ipam.call(EndpointServiceService.listEndpoints, { ...page, ...filter }));
  return pages.flatMap(({ endpoints }) => endpoints);
}

function endpointTable(endpoints: readonly Endpoint[], nowMs: number): Table {
  return {
    kind: 'table',
    columns: ['POD', 'ADDRESSES', 'NODE', 'HOST INTERFACE', 'AGE', 'WRITTEN BY', 'ATTACHMENT'],
    rows: endpoints.map((endpoint) => [
      podText(endpoint),
      endpoint.addresses.map(({ address }) => address.replace(/\/\d+$/, '')).join(', '),
      endpoint.nodeName,
      endpoint.hostInterfaceName,
      age(endpoint.createTime, nowMs),
      isOfPodwire(endpoint) ? 'Podwire' : 'Calico',
      isOfPodwire(endpoint) ? attachmentText(endpoint.attachment) : `endpoint ${endpoint.namespace}/${endpoint.name}`,
    ]),
    none: 'endpoints: none',
  };
}

/** `default/web-0`; empty where there is no pod. */
export function podText(endpoint: Endpoint | undefined): string {
  const pod = endpoint?.pod;
  return pod ? `${pod.namespace}/${pod.name}` : '';
}
