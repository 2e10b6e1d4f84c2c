import { afterAll, beforeAll, expect, test, vi } from 'vitest';

import type { Cluster } from '../support/cluster.js';
import { podwirectl } from '../support/podwirectl.js';
import { run } from '../support/programs.js';
import { cleanUp, expectAllToReachEachOther, IPV4_POOL, startCluster, VXLAN_ALWAYS, wire } from './cluster-pods.js';

vi.setConfig({ testTimeout: 120_000, hookTimeout: 240_000 });

let made: Cluster;
let names: readonly string[];

const podwire = (...args: string[]) => podwirectl(made.nodes[0]!.stack.sockets.ipam, ...args);
const trace = (...args: string[]) => podwire('trace', 'path', ...names, ...args);

beforeAll(async () => {
  made = await startCluster({ subnets: ['a', 'b'] }, [{ ...IPV4_POOL, ...VXLAN_ALWAYS }]);
  const wired = await Promise.all(made.nodes.map((node) => wire(node)));
  names = wired.map(({ pod }) => `default/${pod.name}`);
  await expectAllToReachEachOther(wired);
  // A node reports pods that got its leased addresses a moment later.
  await vi.waitFor(
    async () => {
      const { output } = await podwire('get', 'workloadendpoints', '-A', '-o', 'wide');
      for (const { pod } of wired) expect(output).toContain(pod.name);
    },
    { timeout: 20_000, interval: 200 },
  );
});

afterAll(cleanUp);

test('shows each hop as planned, and the packet on both nodes', async () => {
  const { output, exitCode } = await trace();
  expect(exitCode, output).toBe(0);
  expect(output).toMatch(/node-1 +route to 10\.65\.\S+ +ok +to node-2.*dev vxlan4\.podwire proto 87/);
  expect(output).toMatch(/node-2 +route to 10\.65\.\S+ +ok +dev podw\S+/);
  expect(output).toMatch(/packets on node-1[^]*podw\S+[^]*packets on node-2[^]*vxlan4\.podwire/);
  expect(output).toMatch(/10\.65\.\S+ answers in [\d.]+ ms/);
});

test('names the rule that drops the packet, and leaves no table', async () => {
  const { netns } = made.nodes[1]!.stack;
  const chain = 'chain FORWARD { type filter hook forward priority 0; ip saddr 10.65.0.0/16 counter drop; }';
  run('ip', 'netns', 'exec', netns, 'nft', `table ip foreign { ${chain}; }`);
  const { output, exitCode } = await trace('--port', '8080');
  expect(exitCode, output).toBe(4);
  expect(output).toMatch(/no answer: the path ends at firewall of node-2: .*table ip foreign, chain FORWARD/);
  expect(run('ip', 'netns', 'exec', netns, 'nft', 'list', 'tables')).not.toContain('podwire_trace');
  run('ip', 'netns', 'exec', netns, 'nft', 'delete', 'table', 'ip', 'foreign');
});

test('names a pod that does not exist', async () => {
  const answer = await podwire('trace', 'path', names[0]!, 'default/none');
  expect(answer).toMatchObject({ exitCode: 3, output: expect.stringContaining('pod "default/none": no address') });
});
