import { metrics } from '@opentelemetry/api';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { observeUsage } from './usage-operations.js';
import type { Usage } from './usage.js';

const USAGE: Usage = {
  nodeUsages: [
    { poolName: 'p', nodeName: 'n1', blocks: 2, inUse: 5, borrowed: 1, leased: 4 },
    { poolName: 'p', nodeName: 'no_affinity', blocks: 1, inUse: 0, borrowed: 0, leased: 0 },
    { poolName: 'no_ippool', nodeName: 'unknown_node', blocks: 0, inUse: 3, borrowed: 3, leased: 0 },
  ],
  namespaces: [
    { namespace: 'apps', inUse: 6 },
    { namespace: '_other', inUse: 2 },
  ],
  pools: [{ poolName: 'p', family: 4, size: 256n, reserved: 4n, available: 248n }],
  cooling: 7,
};

let shown: ReadMetrics;

beforeEach(() => {
  shown = new ReadMetrics('podwire.ipam.');
});

afterEach(() => metrics.disable());

test('usage is counted at collection, until its end', async () => {
  const stop = observeUsage(() => Promise.resolve(USAGE));
  expect(await shown.read()).toEqual([
    'allocations.borrowed ippool=no_ippool node=unknown_node 3',
    'allocations.borrowed ippool=p node=n1 1',
    'allocations.cooling 7',
    'allocations.in_use ippool=no_ippool node=unknown_node 3',
    'allocations.in_use ippool=p node=n1 5',
    'allocations.leased ippool=no_ippool node=unknown_node 0',
    'allocations.leased ippool=p node=n1 4',
    'blocks ippool=p node=n1 2',
    'blocks ippool=p node=no_affinity 1',
    'ippool.available ippool=p family=ipv4 248',
    'ippool.reserved ippool=p family=ipv4 4',
    'ippool.size ippool=p family=ipv4 256',
    'namespace.addresses namespace=_other 2',
    'namespace.addresses namespace=apps 6',
  ]);
  stop();
  expect(await shown.read()).toEqual([]);
});

test('no value is reported while the datastore is unavailable', async () => {
  observeUsage(() => Promise.reject(new Error('away')));
  expect(await shown.read()).toEqual([]);
});
