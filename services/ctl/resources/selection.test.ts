import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { BlockServiceService, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { EndpointServiceService, ListEndpointsResponse } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { GetNodeResponse, ListNodesResponse, NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { ListPoolsResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { fake, Fakes, foundPool, holder, pool } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

describe('a selection of objects', () => {
  const nodes = [
    { name: 'node-10', labels: { zone: 'a' } },
    { name: 'node-9', labels: { zone: 'b', gpu: '1' } },
  ];
  const endpoint = { namespace: 'red', name: 'node--1-k8s-web--0-eth0', pod: { namespace: 'red', name: 'web-0' } };
  const allocations = [
    { address: '10.65.0.1', ...holder },
    { address: '10.65.0.2', handleId: 'podwire-lease.node-1', attributes: { node: 'node-1' }, sequenceNumber: 1n },
  ];
  const namesOf = async (...words: string[]) =>
    (await fakes.podwirectl('get', ...words, '-o', 'name')).stdout.split('\n');

  beforeEach(async () => {
    await fakes.serve(
      fake(NodeServiceService.listNodes, () => ListNodesResponse.fromPartial({ nodes })),
      fake(NodeServiceService.getNode, ({ name }) => GetNodeResponse.fromPartial({ node: { name } })),
      fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
      foundPool,
      fake(EndpointServiceService.listEndpoints, ({ namespace }) =>
        ListEndpointsResponse.fromPartial({ endpoints: namespace === 'red' ? [endpoint] : [] }),
      ),
      fake(BlockServiceService.listBlocks, () => ListBlocksResponse.fromPartial({ blocks: [{ allocations }] })),
    );
  });

  test.each([
    [['nodes,ippools'], ['node/node-10', 'node/node-9', 'ippool/main', '']],
    [
      ['node/node-9', 'pool/main'],
      ['node/node-9', 'ippool/main', ''],
    ],
    [
      ['nodes', '-l', 'zone=a'],
      ['node/node-10', ''],
    ],
    [
      ['nodes', '-l', 'zone!=a,gpu'],
      ['node/node-9', ''],
    ],
    [
      ['nodes', '-l', '!gpu'],
      ['node/node-10', ''],
    ],
    [
      ['nodes', '--sort-by', 'name'],
      ['node/node-9', 'node/node-10', ''],
    ],
    [
      ['nodes', '--sort-by', '.metadata.labels.zone'],
      ['node/node-10', 'node/node-9', ''],
    ],
    [
      ['wep', 'red/web-0'],
      ['workloadendpoint/red/node--1-k8s-web--0-eth0', ''],
    ],
    [
      ['wep', '-n', 'red', 'node--1-k8s-web--0-eth0'],
      ['workloadendpoint/red/node--1-k8s-web--0-eth0', ''],
    ],
    [
      ['addresses', '-n', 'default'],
      ['address/10.65.0.1', ''],
    ],
  ])('%j has %j', async (words, names) => {
    expect(await namesOf(...words)).toEqual(names);
  });

  test.each([
    [['blocks', '-n', 'red'], /--namespace: does not restrict blocks; remove it/],
    [['ippools', '-l', 'a=b'], /--selector: ippools have no labels/],
    [['nodes', '--sort-by', 'nam'], /is no column of nodes; did you mean "name"\?/],
    [['node/node-9', 'main'], /"main": is not/],
    [[], /KIND: is missing/],
  ])('%j is refused', async (words, message) => {
    expect(await fakes.podwirectl('get', ...words)).toMatchObject({
      exitCode: 2,
      stderr: expect.stringMatching(message),
    });
  });

  test('is that of manifests; leased addresses are marked', async () => {
    const file = join(fakes.folder, 'pools.yaml');
    writeFileSync(file, '{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: main}}');
    expect(await namesOf('-f', file)).toEqual(['ippool/main', '']);
    expect((await fakes.podwirectl('get', 'addresses')).stdout).toMatch(/^10\.65\.0\.2 +\(leased\) +node-1/m);
  });
});
