import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import { AddressServer } from '../support/address-server.js';
import { ChainRun, type ChainMember } from '../support/chain.js';
import { attachedPods, footprint } from '../support/leftovers.js';
import { makePod, removePod, type CniAnswer, type Pod } from '../support/pods.js';
import { pings, readTcp, rpc, run } from '../support/programs.js';
import { NODE_ADDRESS, Stack } from '../support/stack.js';

/** Podwire in chains with Debian's containernetworking-plugins, which support CNI up to 1.0.0. */

interface Result {
  readonly cniVersion: string;
  readonly interfaces: readonly { readonly name: string; readonly sandbox?: string; readonly mtu?: number }[];
  readonly ips: readonly { readonly address: string; readonly interface?: number; readonly version?: string }[];
}

const stack = new Stack();
const pods: Pod[] = [];

const LOOPBACK: ChainMember = { type: 'loopback' };
const PODWIRE: ChainMember = { type: 'podwire', mtu: 1400 };
const TUNING: ChainMember = { type: 'tuning', sysctl: { 'net.ipv4.conf.eth0.arp_filter': '1' }, mtu: 1380 };
const PORTMAP: ChainMember = {
  type: 'portmap',
  capabilities: { portMappings: true },
  runtimeConfig: { portMappings: [{ hostPort: 8080, containerPort: 80, protocol: 'tcp' }] },
};
const FIREWALL: ChainMember = { type: 'firewall', backend: 'iptables' };
const BANDWIDTH: ChainMember = {
  type: 'bandwidth',
  ingressRate: 8_000_000,
  ingressBurst: 8_000_000,
  egressRate: 8_000_000,
  egressBurst: 8_000_000,
};

function pod(name: string): Pod {
  const made = makePod(name);
  pods.push(made);
  return made;
}

const succeeded = (answers: readonly CniAnswer[], count: number) => {
  const failed = answers.filter(({ exitCode }) => exitCode !== 0);
  expect(failed).toEqual([]);
  expect(answers).toHaveLength(count);
};

const resultOf = (chain: ChainRun): Result => JSON.parse(JSON.stringify(chain.result));
const onNode = (...command: readonly string[]) => run('nsenter', `--net=${stack.netnsPath}`, ...command);

beforeAll(() => stack.start());

afterEach(() => pods.splice(0).forEach(removePod));

afterAll(() => stack.destroy());

describe.each(['0.3.1', '0.4.0', '1.0.0'])('in CNI %s', (cniVersion) => {
  test('podwire works between loopback, tuning, portmap and bandwidth', async () => {
    const before = await footprint(stack);
    const members = [LOOPBACK, PODWIRE, TUNING, PORTMAP, BANDWIDTH];
    const target = pod(`e2e-chain-${cniVersion}`);
    const chain = new ChainRun({ stack, cniVersion, members }, target);
    succeeded(await chain.add(), members.length);

    const { ips, interfaces, ...result } = resultOf(chain);
    expect(result.cniVersion).toBe(cniVersion);
    const own = ips.find(({ address }) => address.startsWith('10.65.'));
    expect(own?.version).toBe(cniVersion === '1.0.0' ? undefined : '4');
    expect(interfaces.map(({ name, sandbox }) => [name.slice(0, 4), sandbox ?? ''])).toEqual([
      ['lo', target.netns],
      ['podw', ''],
      ['eth0', target.netns],
      [expect.any(String), ''],
    ]);
    expect(interfaces[own?.interface ?? -1]?.name).toBe('eth0');
    expect(ips.map(({ address }) => address)).toEqual([
      '127.0.0.1/8',
      ...(ips.length > 2 ? ['::1/128'] : []),
      own?.address,
    ]);

    const address = own?.address.split('/')[0] ?? '';
    expect(pings(address, stack.netnsPath)).toBe(true);
    expect(pings(NODE_ADDRESS, target.netns)).toBe(true);
    expect(onNode('iptables-save', '-t', 'nat')).toContain(`--to-destination ${address}:80`);
    expect(onNode('tc', 'qdisc', 'show', 'dev', interfaces[1]?.name ?? '')).toContain('tbf');
    expect(run('ip', '-n', target.name, '-o', 'link', 'show', 'eth0')).toContain('mtu 1380');

    succeeded(await chain.del(), members.length);
    expect(await footprint(stack)).toEqual(before);
  });
});

test('a hostPort is reachable at the node’s 127.0.0.1, and pods cannot reach that', async () => {
  const ports = { portMappings: [{ hostPort: 8088, containerPort: 8080, protocol: 'tcp' }] };
  const members = [PODWIRE, { ...PORTMAP, runtimeConfig: ports }];
  const target = pod('e2e-chain-host-port');
  const chain = new ChainRun({ stack, cniVersion: '1.0.0', members }, target);
  succeeded(await chain.add(), members.length);
  const server = await AddressServer.start(target.netns);
  try {
    for (const address of ['127.0.0.1', NODE_ADDRESS])
      expect(readTcp({ address, port: 8088 }, stack.netnsPath), address).toBe(NODE_ADDRESS);
    expect(onNode('nft', 'list', 'chain', 'inet', 'podwire', 'check_source')).toContain('ip daddr 127.0.0.0/8 counter');
  } finally {
    await server.stop();
  }
  succeeded(await chain.del(), members.length);
});

test('a pod whose MAC address is set by tuning is reachable', async () => {
  const mac = '02:00:5e:00:53:01';
  const members = [PODWIRE, { ...TUNING, mac }];
  const target = pod('e2e-chain-mac');
  const chain = new ChainRun({ stack, cniVersion: '1.0.0', members }, target);
  succeeded(await chain.add(), members.length);
  expect(run('ip', '-n', target.name, '-o', 'link', 'show', 'eth0')).toContain(mac);
  const address = resultOf(chain).ips[0]?.address.split('/')[0] ?? '';
  // The node's neighbour entry follows two seconds after the attachment, not with the check of all pods.
  await expect.poll(() => pings(address, stack.netnsPath), { timeout: 20_000 }).toBe(true);
  expect(onNode('ip', 'neigh', 'show', address)).toContain(`lladdr ${mac} PERMANENT`);
  succeeded(await chain.del(), members.length);
});

test('in CNI 1.0.0 CHECK covers a dual-stack pod in a chain with firewall', async () => {
  rpc(stack.sockets.ipam, 'podwire.ipam.v1.PoolService/CreatePool', { pool: { name: 'six', cidr: 'fd65::/48' } });
  const ipam = { type: 'podwire-ipam', assign_ipv4: 'true', assign_ipv6: 'true' };
  // Values that tuning sets after podwire are no difference. Without portmap, whose CHECK looks for IPv4's rules among IPv6's.
  const members = [{ ...PODWIRE, ipam }, { ...TUNING, mtu: 0 }, FIREWALL, BANDWIDTH];
  const chain = new ChainRun({ stack, cniVersion: '1.0.0', members }, pod('e2e-chain-check'));
  succeeded(await chain.add(), members.length);
  const answers = await chain.check();
  succeeded(answers, members.length);
  expect(answers[0]).toEqual({ exitCode: 0, stdout: '', stderr: '' });
  const addresses = resultOf(chain).ips.map(({ address }) => address);
  expect(addresses).toHaveLength(2);
  const rules = () => [onNode('iptables-save'), onNode('ip6tables-save')].join('\n');
  for (const address of addresses) expect(rules()).toMatch(new RegExp(`-A CNI-FORWARD -s ${address} -j ACCEPT`));
  for (let count = 0; count < 2; count++) succeeded(await chain.del(), members.length);
  for (const address of addresses) expect(rules()).not.toContain(address);
  expect(await attachedPods(stack)).toEqual([]);
});

test('in CNI 1.1.0 podwire keeps the prevResult, and adds the MTU', async () => {
  const target = pod('e2e-chain-1.1.0');
  const before = {
    cniVersion: '1.1.0',
    interfaces: [{ name: 'net7', sandbox: target.netns, mtu: 9000, socketPath: '/run/vhost' }],
    ips: [{ address: '192.0.2.7/24', gateway: '192.0.2.1', interface: 0 }],
    routes: [{ dst: '198.51.100.0/24', table: 0, scope: 253 }],
    dns: { nameservers: ['192.0.2.53'] },
  };
  const chain = new ChainRun({ stack, cniVersion: '1.1.0', members: [PODWIRE] }, target);
  chain.result = before;
  succeeded(await chain.add(), 1);
  const { interfaces, ips, ...rest } = resultOf(chain);
  const routes = [...before.routes, { dst: ips[1]?.address }];
  expect(rest).toEqual({ cniVersion: '1.1.0', routes, dns: before.dns });
  expect(interfaces.map(({ mtu }) => mtu)).toEqual([9000, 1400, 1400]);
  expect(interfaces[0]).toEqual(before.interfaces[0]);
  expect(ips).toEqual([before.ips[0], { interface: 2, address: expect.stringMatching(/^10\.65\..*\/32$/) }]);
  succeeded(await chain.check(), 1);
  succeeded(await chain.del(), 1);
});

test.each(['0.1.0', '0.2.0', undefined])('in CNI %s a pod has its address as ip4', async (cniVersion) => {
  const target = pod(`e2e-old-${cniVersion ?? 'none'}`);
  const chain = new ChainRun({ stack, cniVersion: cniVersion ?? '', members: [PODWIRE] }, target);
  succeeded(await chain.add(), 1);
  const address: unknown = expect.stringMatching(/^10\.65\..*\/32$/);
  expect(chain.result).toEqual({
    cniVersion: cniVersion ?? '0.1.0',
    ip4: { ip: address, routes: [{ dst: address }] },
  });
  succeeded(await chain.del(), 1);
});
