import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';

import type { Cluster, Node } from '../support/cluster.js';
import { podwirectl } from '../support/podwirectl.js';
import { rpc, run } from '../support/programs.js';
import { ROOT } from '../support/root.js';
import { cleanUp, IPV4_POOL, IPV6_POOL, startCluster, VXLAN_ALWAYS } from './cluster-pods.js';

vi.setConfig({ testTimeout: 240_000, hookTimeout: 240_000 });

let made: Cluster;

const ipamSocket = () => made.nodes[0]!.stack.sockets.ipam;
const ctl = (...args: string[]) => podwirectl(ipamSocket(), ...args);
const within = ({ stack }: Node, ...command: string[]) => run('ip', 'netns', 'exec', stack.netns, ...command);

/** Objects that a test must not leave: pods' interfaces on the nodes, traces, and handles with addresses. */
function leftovers(): string[] {
  const links = made.nodes.flatMap(
    ({ stack }) => stack.ip('-br', 'link', 'show', 'type', 'veth').match(/^podw\S+/gm) ?? [],
  );
  const tables = made.nodes.flatMap((node) => within(node, 'nft', 'list', 'tables').match(/podwire_trace/g) ?? []);
  const handles = JSON.stringify(made.ipam('HandleService/ListHandles')).match(/podwire-probe[\w.-]*/g) ?? [];
  return [...links, ...tables, ...handles];
}

const probing = () => leftovers().length > 0;

/** podwirectl as a process of its own. */
function startCtl(...args: string[]): ChildProcess {
  const program = join(ROOT, 'services/ctl/bin/podwirectl.mjs');
  const env = { PATH: process.env.PATH, PODWIRE_NODE_IPAM_ADDRESS: `unix:${ipamSocket()}` };
  return spawn(process.execPath, [program, 'connectivity', 'test', ...args], { env, stdio: 'ignore' });
}

beforeAll(async () => {
  const pools = [IPV4_POOL, IPV6_POOL].map((pool) => ({ ...pool, ...VXLAN_ALWAYS }));
  made = await startCluster({ subnets: ['a', 'a', 'b'] }, pools);
  await vi.waitFor(
    async () => {
      const { output } = await ctl('status', '-o', 'json');
      expect(output.match(/"ipv[46]Address": "[^"]/g)).toHaveLength(2 * made.nodes.length);
      expect(output.match(/"ready": true/g)).toHaveLength(made.nodes.length);
    },
    { timeout: 60_000, interval: 500 },
  );
});

afterAll(cleanUp);

describe('podwirectl connectivity test', () => {
  test('passes in both families on a healthy cluster, writes its report, and leaves nothing', async () => {
    const junit = join(made.nodes[0]!.stack.folder, 'junit.xml');
    const { output, exitCode } = await ctl('connectivity', 'test', '--outside', made.outside.ipv4, '--junit', junit);
    expect(exitCode, output).toBe(0);
    expect(output).toMatch(/pod-pod MTU +IPv6 +passed +6\/6/);
    expect(output).toMatch(/pod-pod udp +IPv4 +passed +6\/6[^]*pod-pod udp +IPv6 +passed +6\/6/);
    expect(output).toMatch(/pod-host-port +IPv4 +passed +9\/9/);
    expect(output).toMatch(/pod-outside +IPv4 +passed +3\/3/);
    expect(output).toContain('skipped: service');
    expect(readFileSync(junit, 'utf8')).toMatch(/<testsuites tests="\d+" failures="0" skipped="1">/);
    // The node reports a released lease a moment later.
    await expect.poll(leftovers, { timeout: 30_000 }).toEqual([]);
  });

  test('tests one node alone, with a Service, as JSON', async () => {
    const { ipv4 } = made.nodes[1]!;
    const options = ['--node', 'node-1', '--family', '4', '--service', `${ipv4}:1`, '-o', 'json'];
    const { output, exitCode } = await ctl('connectivity', 'test', ...options);
    expect(exitCode).toBe(4);
    const { passed, checks } = JSON.parse(output);
    expect(passed).toBe(false);
    const broken = checks.filter((check: { passed: boolean }) => !check.passed);
    expect(broken).toHaveLength(2);
    expect(broken[0]).toMatchObject({ check: 'pod-service', ends: { place: 'remote node' } });
    expect(checks.filter(({ check }: { check: string }) => check === 'pod-pod')).toHaveLength(2);
  });
});

/** A fault of a node, and its end. */
interface Fault {
  readonly plant: (node: Node) => () => unknown;
  readonly expected: RegExp;
}

const FAULTS: Readonly<Record<string, Fault>> = {
  'a rule of another program': {
    plant: (node) => {
      const chain = 'chain FORWARD { type filter hook forward priority 0; ip saddr 10.65.0.0/16 counter drop; }';
      within(node, 'nft', `table ip foreign { ${chain}; }`);
      return () => within(node, 'nft', 'delete', 'table', 'ip', 'foreign');
    },
    expected: /broken at firewall of node-2: .*table ip foreign, chain FORWARD, rule: ip saddr 10.65.0.0\/16 drop/,
  },
  'a smaller MTU of the uplink': {
    plant: ({ stack }) => {
      stack.ip('link', 'set', 'eth0', 'mtu', '1400');
      return () => stack.ip('link', 'set', 'eth0', 'mtu', '1500');
    },
    expected: /broken at MTU of node-2: packets of \d+ bytes are dropped \(eth0 receive drops\)/,
  },
  'a wrong route': {
    plant: ({ stack }) => {
      const routes = stack
        .ip('route')
        .split('\n')
        .filter((line) => line.includes(' dev vxlan4.podwire '));
      const parts = routes.flatMap((line) => halves(line.split(' ')[0]!));
      for (const part of parts) stack.ip('route', 'add', part, 'dev', 'eth0');
      return () => parts.forEach((part) => stack.ip('route', 'delete', part));
    },
    expected: /broken at route of node-2: packets to 10\.65\.\d+\.\d+ take the route "10\.65\.\S+ dev eth0 proto 3"/,
  },
  'encapsulated packets that are dropped on their way': {
    plant: (node) => {
      const chain = 'chain c { type filter hook ingress device "eth0" priority 0; udp dport 4789 drop; }';
      within(node, 'nft', `table netdev block { ${chain}; }`);
      return () => within(node, 'nft', 'delete', 'table', 'netdev', 'block');
    },
    expected: /broken at tunnel of node-1: the packet leaves node-1 by vxlan4.podwire/,
  },
  'a podwire-node that hangs': {
    plant: ({ stack }) => {
      run('sh', '-c', `kill -STOP $(ip netns pids ${stack.netns})`);
      return () => run('sh', '-c', `kill -CONT $(ip netns pids ${stack.netns})`);
    },
    expected: /node-2: (no pod can be made on node-2|podwire-node of node-2 (is not connected|does not answer))/,
  },
};

describe('podwirectl connectivity test names the place of', () => {
  test.each(Object.entries(FAULTS))('%s', async (_, { plant, expected }) => {
    const remove = plant(made.nodes[1]!);
    try {
      const { output, exitCode } = await ctl('connectivity', 'test', '--family', '4', '--node', 'node-1,node-2');
      expect(exitCode, output).toBe(4);
      expect(output).toMatch(expected);
    } finally {
      remove();
    }
    await expect.poll(leftovers, { timeout: 90_000 }).toEqual([]);
  });
});

describe('podwirectl connectivity test leaves nothing', () => {
  test('after Ctrl-C', async () => {
    const child = startCtl('--outside', '203.0.113.99');
    await expect.poll(probing, { timeout: 30_000, interval: 20 }).toBe(true);
    child.kill('SIGINT');
    const [exitCode] = await once(child, 'exit');
    expect(exitCode).toBe(1);
    // The node reports a released lease a moment later.
    await expect.poll(leftovers, { timeout: 30_000 }).toEqual([]);
  });

  test('after kill -9, with --cleanup', async () => {
    const child = startCtl('--outside', '203.0.113.99');
    await expect.poll(probing, { timeout: 30_000, interval: 20 }).toBe(true);
    child.kill('SIGKILL');
    await once(child, 'exit');
    await expect
      .poll(async () => (await ctl('connectivity', 'test', '--cleanup')).output && leftovers(), { timeout: 60_000 })
      .toEqual([]);
  });

  test('after kill -9 of a podwire-node, at its next start', async () => {
    const { stack } = made.nodes[1]!;
    const probes = 'podwire.dataplane.v1.ProbeService';
    rpc(stack.sockets.dataplane, `${probes}/AddProbePod`, { run: 'killed', families: [4] });
    within(made.nodes[1]!, 'nft', 'add', 'table', 'inet', 'podwire_trace');
    // The handle of a leased address comes later.
    expect(leftovers()).toEqual(expect.arrayContaining([expect.stringMatching(/^podw/), 'podwire_trace']));
    await stack.kill('node');
    await stack.start('node');
    await expect.poll(leftovers, { timeout: 60_000 }).toEqual([]);
  });
});

/** The halves of a range of IPv4, whose routes are preferred to its own. */
function halves(cidr: string): string[] {
  const [address = '', length = ''] = cidr.split('/');
  const parts = address.split('.').map(Number);
  const upper = [...parts.slice(0, 3), parts[3]! + 2 ** (31 - Number(length))].join('.');
  return [address, upper].map((each) => `${each}/${Number(length) + 1}`);
}
