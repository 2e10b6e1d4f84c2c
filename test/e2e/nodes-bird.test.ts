import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, expect, test, vi } from 'vitest';

import type { Cluster } from '../support/cluster.js';
import {
  cleanUp,
  expectAddressesSeen,
  expectAllToReachEachOther,
  IPV4_POOL,
  startCluster,
  wire,
} from './cluster-pods.js';

// Up to a dozen processes start, on a machine with other load.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 });

const BIRD = { PODWIRE_ROUTING: 'bird', PODWIRE_BIRD_RUN: 'child', PODWIRE_BIRD_POLL_MS: '500' };

const removals: (() => unknown)[] = [];

afterEach(async () => {
  for (const remove of removals.splice(0).reverse()) await remove();
  await cleanUp();
});

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'podwire-e2e-bird-'));
  removals.push(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** The router as the nodes' route reflector, which uses their routes itself too. */
async function startReflector({ nodes, routerNetns }: Cluster): Promise<void> {
  const path = folder();
  const neighbours = nodes.map(({ ipv4 }, index) => `protocol bgp n${index} from node { neighbor ${ipv4} as 64512; }`);
  const config = [
    'router id 192.0.2.1;',
    'protocol device {}',
    'protocol direct { ipv4; }',
    'protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }',
    'template bgp node { local as 64512; rr client; ipv4 { import all; export all; }; }',
    ...neighbours,
  ];
  writeFileSync(join(path, 'bird.conf'), config.join('\n'));
  const args = ['-f', '-c', join(path, 'bird.conf'), '-s', join(path, 'bird.ctl')];
  const child = spawn('nsenter', [`--net=/run/netns/${routerNetns}`, 'bird', ...args], { stdio: 'inherit' });
  await once(child, 'spawn');
  removals.push(async () => {
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  });
}

test('pods reach each other over BGP, every node a peer of every other', async () => {
  const made = await startCluster({ subnets: ['a', 'a', 'a'], env: BIRD }, [IPV4_POOL]);
  const wired = await Promise.all(made.nodes.map((node) => wire(node)));
  await expectAllToReachEachOther(wired);
  await expectAddressesSeen(made, wired);
  for (const { stack } of made.nodes) {
    expect(stack.ip('route', 'show', 'proto', 'bird').trim().split('\n')).toHaveLength(2);
    expect(stack.ip('route', 'show', 'proto', '87', 'type', 'unicast')).not.toContain('via');
  }
});

test('pods of two subnets reach each other through a router that reflects routes', async () => {
  const peersFile = join(folder(), 'peers.yaml');
  const peers = [
    { name: 'router-a', nodes: ['node-1', 'node-2'], address: '192.0.2.1', asNumber: 64512 },
    { name: 'router-b', nodes: ['node-3'], address: '198.51.100.1', asNumber: 64512 },
  ];
  writeFileSync(peersFile, JSON.stringify({ mesh: false, peers }));
  const env = { ...BIRD, PODWIRE_BIRD_PEERS_FILE: peersFile };
  const made = await startCluster({ subnets: ['a', 'a', 'b'], env }, [IPV4_POOL]);
  await startReflector(made);
  const wired = await Promise.all(made.nodes.map((node) => wire(node)));
  await expectAllToReachEachOther(wired);
  await expectAddressesSeen(made, wired);
});
