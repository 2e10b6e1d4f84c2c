import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, ListEndpointsRequest, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { attachment, clientLimits, faultsOf, Served } from '../testing/service.js';

const served = new Served();

/** Three pods each in two namespaces on two nodes, one of them of another pool, and a container without a pod. */
beforeAll(async () => {
  await served.begin();
  await served.caller.createPool({ name: 'other', cidr: '10.66.0.0/24' });
  for (const nodeName of ['node-1', 'node'])
    for (const namespace of ['default', 'apps'])
      for (const name of ['web', 'web-0', 'db']) {
        const pools = name === 'db' ? ['other'] : ['default'];
        await served.caller.allocate(`${nodeName}-${namespace}-${name}`, {
          nodeName,
          pod: { namespace, name, uid: 'u' },
          pools,
        });
      }
  await served.caller.allocate('bare', { nodeName: 'node', pools: ['default'] });
});

afterAll(() => served.end());

function list(filter: Partial<ListEndpointsRequest> = {}) {
  return served.caller.peer.call(
    EndpointServiceService.listEndpoints,
    ListEndpointsRequest.fromPartial(filter),
    clientLimits(),
  );
}

async function all(filter: Partial<ListEndpointsRequest> = {}): Promise<Endpoint[]> {
  const endpoints: Endpoint[] = [];
  for (let pageToken = ''; ;) {
    const page = await list({ ...filter, pageToken });
    endpoints.push(...page.endpoints);
    pageToken = page.nextPageToken;
    if (pageToken === '') return endpoints;
  }
}

function namesOf(endpoints: readonly Endpoint[]): string[] {
  return endpoints.map(({ namespace, name }) => `${namespace}/${name}`);
}

describe('a list of endpoints', () => {
  test('has all of them, in order, with any page size', async () => {
    const names = namesOf(await all());
    expect(names).toHaveLength(13);
    expect(names).toEqual(names.toSorted());
    for (const pageSize of [1, 2, 5, 13]) expect(namesOf(await all({ pageSize }))).toEqual(names);
  });

  test('shows each like Allocate', async () => {
    const { endpoint } = await served.caller.getEndpoint('node-1-apps-web-0');
    const [listed] = await all({ nodeName: 'node-1', namespace: 'apps', podName: 'web-0' });
    expect(listed).toEqual(endpoint);
    expect(listed).toMatchObject({ namespace: 'apps', name: 'node--1-k8s-web--0-eth0', pod: { uid: 'u' } });
  });

  test.each<[Partial<ListEndpointsRequest>, number]>([
    [{ nodeName: 'node' }, 7],
    [{ nodeName: 'node-1' }, 6],
    [{ nodeName: 'nod' }, 0],
    [{ namespace: 'apps' }, 6],
    [{ namespace: 'app' }, 0],
    [{ podName: 'web' }, 4],
    [{ podName: 'web', nodeName: 'node-1' }, 2],
    [{ poolName: 'other' }, 4],
    [{ poolName: 'other', namespace: 'default', nodeName: 'node', podName: 'db' }, 1],
    [{ poolName: 'other', podName: 'web' }, 0],
  ])('for %j has %d', async (filter, count) => {
    const found = await all({ ...filter, pageSize: 2 });
    expect(found).toHaveLength(count);
    for (const { nodeName, namespace, pod, addresses } of found) {
      const values = { nodeName, namespace, podName: pod?.name, poolName: addresses[0]?.poolName };
      expect(values).toMatchObject(filter);
    }
  });

  test('refuses malformed filters, and tokens of other filters', async () => {
    const { nextPageToken } = await list({ pageSize: 1 });
    expect(
      await faultsOf(
        list({ nodeName: 'A', namespace: 'a.b', podName: '-', poolName: 'P', pageSize: -1, pageToken: 'x' }),
      ),
    ).toEqual([
      expect.stringMatching(/^node_name is no RFC 1123 subdomain/),
      expect.stringMatching(/^namespace is no RFC 1123 label/),
      expect.stringMatching(/^pod_name is no RFC 1123 subdomain/),
      expect.stringMatching(/^pool_name is no RFC 1123 subdomain/),
      'page_size is -1; it must be 0 or more',
      expect.stringMatching(/^page_token is not a token/),
    ]);
    expect(await faultsOf(list({ nodeName: 'node', pageToken: nextPageToken }))).toHaveLength(1);
  });
});

describe('an attachment whose parts end with a dash', () => {
  const allocate = (containerId: string, interfaceName: string, rest: Partial<AllocateRequest> = {}) => {
    const message = AllocateRequest.fromPartial({ nodeName: 'node', ...rest });
    return served.caller.peer.call(
      AddressServiceService.allocate,
      { ...message, attachment: attachment(containerId, interfaceName) },
      clientLimits(),
    );
  };

  test('gets no endpoint, as another attachment could have its name', async () => {
    const fault = 'begins or ends with "-", which is not allowed in the name of a workload endpoint';
    expect(await faultsOf(allocate('a-', '-b'))).toEqual([
      `attachment.container_id ${fault}`,
      `attachment.interface_name ${fault}`,
    ]);
    const pod = { namespace: 'default', name: 'p', uid: '' };
    expect(await faultsOf(allocate('a-', 'b-', { pod }))).toEqual([`attachment.interface_name ${fault}`]);
    expect(await all({ podName: 'p' })).toEqual([]);
  });

  test('is accepted where the dash is not part of the name', async () => {
    const pod = { namespace: 'default', name: 'dashed', uid: '' };
    expect((await allocate('a-', 'a-b', { pod })).endpoint?.name).toBe('node-k8s-dashed-a--b');
    expect(await served.caller.release('a-', 'a-b')).toMatchObject({ addresses: [expect.any(String)] });
  });
});
