// Debian's main plugins with Podwire's addresses.
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { pings, rpc } from '../support/programs.js';
import { until } from '../support/until.js';
import { addressOf, DelegatingNode, PEERS } from './delegation.js';

// A blackhole route of the node's block would hide the pods of a bridge from the node.
const node = new DelegatingNode({ PODWIRE_ROUTING: 'none' });

beforeAll(async () => {
  await node.stack.start('ipam', 'node');
  rpc(node.stack.sockets.ipam, 'podwire.ipam.v1.PoolService/CreatePool', { pool: { name: 'six', cidr: 'fd65::/48' } });
});

afterAll(() => node.destroy());

const FAMILIES = {
  IPv4: { assign_ipv4: 'true', assign_ipv6: 'false' },
  IPv6: { assign_ipv4: 'false', assign_ipv6: 'true' },
  'dual stack': { assign_ipv4: 'true', assign_ipv6: 'true' },
};

const ROUTES = { IPv4: ['0.0.0.0/0'], IPv6: ['::/0'], 'dual stack': ['0.0.0.0/0', '::/0'] };

function configuration(type: string, families: keyof typeof FAMILIES, cniVersion = '1.0.0') {
  const routes = ROUTES[families].map((dst) => ({ dst }));
  const ipam = { type: 'podwire-ipam', ...FAMILIES[families], routes, dns: { nameservers: ['10.65.0.53'] } };
  const name = `${type}-${families.replace(' ', '-').toLowerCase()}`;
  const bridge = type === 'bridge' ? { bridge: `br-${families.slice(-2)}`, isGateway: true } : { bridge: undefined };
  return { cniVersion, name, type, ipam, ...bridge };
}

test('podwire-ipam under macvlan: pods reach each other on the link, in both families, without a gateway', async () => {
  node.stack.ip('link', 'add', 'uplink', 'type', 'veth', 'peer', 'name', 'switch');
  for (const name of ['uplink', 'switch']) node.stack.ip('link', 'set', name, 'up');
  const { ipam, ...keys } = configuration('macvlan', 'dual stack');
  const config = { ...keys, master: 'uplink', mode: 'bridge', ipam: { ...ipam, gateways: [], routes: [] } };
  const rest = { program: `${PEERS}/macvlan`, config };
  const [a, b] = [node.pod('macvlan-a'), node.pod('macvlan-b')];
  const [toA, toB] = [await node.add(a, rest), await node.add(b, rest)];
  expect(toA.ips.map(({ gateway }) => gateway)).toEqual([undefined, undefined]);
  for (const family of [4, 6] as const) {
    await until(
      () => pings(addressOf(toB, family), a.netns),
      () => `a → b, IPv${family}: no answer`,
    );
  }
  const checked = await node.call('CHECK', a, { ...rest, config: { ...config, prevResult: { ...toA } } });
  expect(checked).toMatchObject({ exitCode: 0, stdout: '' });
  expect(node.holders()).toHaveLength(2);
  for (const pod of [a, b, a, b]) expect(await node.call('DEL', pod, rest)).toMatchObject({ exitCode: 0, stdout: '' });
  expect(node.holders()).toEqual([]);
  node.stack.ip('link', 'delete', 'uplink');
});

test('podwire-ipam allocates an address for the node itself where the runtime requests that', async () => {
  const program = join(node.bin, 'podwire-ipam');
  const config = { cniVersion: '1.0.0', name: 'ingress', type: 'cilium-cni', ipam: { type: 'podwire-ipam' } };
  const pod = { ...node.pod('ingress'), netns: node.stack.netnsPath };
  const refused = await node.call('ADD', pod, { program, config });
  expect(JSON.parse(refused.stdout)).toMatchObject({ code: 4, msg: expect.stringContaining('own network namespace') });
  const rest = { program, config, env: { CNI_NETNS_OVERRIDE: '1' } };
  expect(await node.call('ADD', pod, rest)).toMatchObject({ exitCode: 0 });
  expect(node.holders()).toHaveLength(1);
  expect(await node.call('DEL', pod, rest)).toMatchObject({ exitCode: 0, stdout: '' });
  expect(node.holders()).toEqual([]);
});

test('STATUS of podwire-ipam stays ready while podwire-ipam is down', async () => {
  const pod = node.pod('status');
  const config = { cniVersion: '1.1.0', name: 'status', type: 'ptp', ipam: { type: 'podwire-ipam' } };
  const ofIpam = () => node.call('STATUS', pod, { config, program: join(node.bin, 'podwire-ipam') });
  // STATUS gives services less time than a busy machine may need.
  await expect.poll(ofIpam, { timeout: 30_000 }).toEqual({ exitCode: 0, stdout: '', stderr: '' });
  await node.stack.kill('ipam');
  // Its pods are healthy: the ADD fails.
  expect(await ofIpam()).toEqual({ exitCode: 0, stdout: '', stderr: '' });
  await node.stack.start('ipam');
});

for (const type of ['ptp', 'bridge']) {
  describe(`podwire-ipam under ${type}`, () => {
    test.each(['IPv4', 'IPv6', 'dual stack'] as const)(
      '%s: pods reach each other, and the node them',
      async (families) => {
        const rest = { program: `${PEERS}/${type}`, config: configuration(type, families) };
        const [a, b] = [node.pod(`${type}-${families.slice(-2)}-a`), node.pod(`${type}-${families.slice(-2)}-b`)];
        const [toA, toB] = [await node.add(a, rest), await node.add(b, rest)];
        // Debian's bridge replaces the DNS settings of its IPAM plugin by its own.
        if (type === 'ptp') expect(toA.dns).toEqual({ nameservers: ['10.65.0.53'] });
        expect(toA.ips.map(({ gateway }) => gateway)).toEqual(toB.ips.map(({ gateway }) => gateway));
        for (const family of families === 'dual stack'
          ? ([4, 6] as const)
          : families === 'IPv4'
            ? ([4] as const)
            : ([6] as const)) {
          // These plugins wait for the detection of duplicate IPv6 addresses.
          await until(
            () => pings(addressOf(toB, family), a.netns),
            () => `a → b, IPv${family}: no answer`,
          );
          await until(
            () => pings(addressOf(toA, family), node.stack.netnsPath),
            () => `node → a, IPv${family}: no answer`,
          );
        }
        const prevResult = { ...toA };
        expect(await node.call('CHECK', a, { ...rest, config: { ...rest.config, prevResult } })).toMatchObject({
          exitCode: 0,
          stdout: '',
        });
        expect(node.holders()).toHaveLength(2);
        for (const pod of [a, b, a, b])
          expect(await node.call('DEL', pod, rest)).toMatchObject({ exitCode: 0, stdout: '' });
        expect(node.holders()).toEqual([]);
        // It keeps its address without pods, and with it the route to the pool.
        if (rest.config.bridge !== undefined) node.stack.ip('link', 'delete', rest.config.bridge);
      },
    );
  });
}

test('gateways stay after the pods, and while their node runs', async () => {
  const rest = { program: `${PEERS}/ptp`, config: configuration('ptp', 'IPv4') };
  const pod = node.pod('gateway');
  const { ips } = await node.add(pod, rest);
  expect(await node.call('DEL', pod, rest)).toMatchObject({ exitCode: 0, stdout: '' });
  expect(node.holders()).toEqual([]);
  expect(node.gateways()).toContainEqual(expect.stringContaining(`${ips[0]?.gateway}/32`));
  // The next pod gets the same gateway, as a bridge that still exists would need.
  expect((await node.add(pod, rest)).ips[0]?.gateway).toBe(ips[0]?.gateway);
  expect(await node.call('DEL', pod, rest)).toMatchObject({ exitCode: 0, stdout: '' });
  const deletion = () => rpc(node.stack.sockets.ipam, 'podwire.ipam.v1.NodeService/DeleteNode', { name: 'node-1' });
  expect(deletion).toThrow(/node node-1 runs/);
  expect(node.gateways()).toContainEqual(expect.stringContaining(`${ips[0]?.gateway}/32`));
});
