// Podwire's attachments with addresses of Debian's IPAM plugins.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { podwirectl } from '../support/podwirectl.js';
import { pings, run } from '../support/programs.js';
import { addressOf, DelegatingNode } from './delegation.js';

const node = new DelegatingNode({ PODWIRE_NODE_POD_CIDR: '192.0.2.0/25' });

beforeAll(async () => {
  // The dataplane does it with an IPv6 pool in IPAM.
  run('ip', 'netns', 'exec', node.stack.netns, 'sysctl', '-qw', 'net.ipv6.conf.all.forwarding=1');
  await node.stack.start();
});

afterAll(() => node.destroy());

test('host-local: pods reach each other, and DEL releases the leases', async () => {
  const dataDir = join(node.stack.folder, 'leases');
  const ranges = [[{ subnet: '192.0.2.0/24' }], [{ subnet: 'fd65:1::/64' }]];
  const config = { name: 'lease', ipam: { type: 'host-local', dataDir, ranges } };
  const leases = () =>
    existsSync(join(dataDir, 'lease'))
      ? readdirSync(join(dataDir, 'lease')).filter((name) => /^[0-9a-f]/.test(name))
      : [];
  const [a, b] = [node.pod('lease-a'), node.pod('lease-b')];
  const [toA, toB] = [await node.add(a, { config }), await node.add(b, { config })];
  expect(toA.ips.map(({ address }) => address)).toEqual(['192.0.2.2/32', 'fd65:1::2/128']);
  for (const family of [4, 6] as const) {
    const [to, back] = [pings(addressOf(toB, family), a.netns), pings(addressOf(toA, family), b.netns)];
    expect([to, back], `IPv${family}`).toEqual([true, true]);
  }
  expect(await node.call('CHECK', a, { config: { ...config, prevResult: toA } })).toMatchObject({ exitCode: 0 });
  expect(leases()).toHaveLength(4);
  // podwire-ipam learns of the pods in the background, and audit finds nothing.
  const endpoints = [toA, toB].map(({ ips }) => ips.map(({ address }) => address).join(' '));
  await expect.poll(() => node.otherEndpoints().sort(), { timeout: 20_000 }).toEqual(endpoints.sort());
  const { exitCode, output } = await podwirectl(node.stack.sockets.ipam, 'audit');
  expect([exitCode, output]).toEqual([0, expect.stringContaining('no findings')]);
  const who = await podwirectl(node.stack.sockets.ipam, 'who', addressOf(toA));
  expect([who.exitCode, who.output]).toEqual([0, expect.stringMatching(/^Pod +\S+lease-a$/m)]);

  // A second ADD is refused by host-local, and must not release the pod's lease.
  expect(await node.call('ADD', a, { config })).toMatchObject({
    exitCode: 1,
    stdout: expect.stringContaining('host-local'),
  });
  expect(leases()).toHaveLength(4);
  expect(pings(addressOf(toA), b.netns)).toBe(true);

  for (const pod of [a, a]) expect(await node.call('DEL', pod, { config })).toMatchObject({ exitCode: 0, stdout: '' });
  expect(leases()).toHaveLength(2);
  expect(await node.call('DEL', b, { config })).toMatchObject({ exitCode: 0, stdout: '' });
  expect(leases()).toEqual([]);
  expect(node.stack.ip('-br', 'link')).not.toContain('podw');
  expect(node.holders()).toEqual([]);
  await expect.poll(() => node.otherEndpoints(), { timeout: 20_000 }).toEqual([]);
});

test('host-local with usePodCidr: an address of the node’s podCIDR, and no pending release of a pod that got none', async () => {
  const dataDir = join(node.stack.folder, 'pod-cidr');
  const config = (subnet: string) => ({ name: 'pod-cidr', ipam: { type: 'host-local', dataDir, subnet } });
  const [a, b] = [node.pod('pod-cidr-a'), node.pod('pod-cidr-b')];
  const { ips } = await node.add(a, { config: config('usePodCidr') });
  expect(ips).toMatchObject([{ address: '192.0.2.2/32' }]);
  const refused = await node.call('ADD', b, { config: config('usePodCidrIPv6') });
  expect(JSON.parse(refused.stdout)).toMatchObject({ code: 7, msg: expect.stringContaining('PODWIRE_NODE_POD_CIDR') });
  await node.stack.kill('node');
  await node.stack.start('node');
  for (const [pod, subnet] of [
    [a, 'usePodCidr'],
    [b, 'usePodCidrIPv6'],
  ] as const) {
    const answer = await node.call('DEL', pod, { config: config(subnet) });
    expect(answer).toMatchObject({ exitCode: 0, stdout: '' });
  }
  expect(readdirSync(join(dataDir, 'pod-cidr')).filter((name) => /^[0-9a-f]/.test(name))).toEqual([]);
  expect(readdirSync(join(node.stack.folder, 'journal')).filter((name) => name.endsWith('.json'))).toEqual([]);
});

test('static: a pod has the configured addresses', async () => {
  const config = (address: string) => ({
    name: 'fixed',
    ipam: { type: 'static', addresses: [{ address: `${address}/24` }], dns: { nameservers: ['192.0.2.53'] } },
  });
  const [a, b] = [node.pod('fixed-a'), node.pod('fixed-b')];
  const toA = await node.add(a, { config: config('198.51.100.7') });
  expect(toA).toMatchObject({ ips: [{ address: '198.51.100.7/32' }], dns: { nameservers: ['192.0.2.53'] } });
  expect(await node.add(a, { config: config('198.51.100.7') })).toEqual(toA);
  await node.add(b, { config: config('198.51.100.8') });
  expect(pings('198.51.100.8', a.netns)).toBe(true);
  for (const pod of [a, b]) {
    expect(await node.call('DEL', pod, { config: config('198.51.100.7') })).toMatchObject({ exitCode: 0, stdout: '' });
  }
  expect(node.stack.ip('-br', 'link')).not.toContain('podw');
});

test('dhcp is refused: routed pods have no link to a server', async () => {
  const pod = node.pod('dhcp');
  const config = { name: 'dhcp', ipam: { type: 'dhcp' } };
  const answer = await node.call('ADD', pod, { config });
  expect(answer.exitCode).toBe(1);
  expect(JSON.parse(answer.stdout)).toMatchObject({
    code: 7,
    msg: expect.stringContaining('ipam.type requires a server'),
  });
  expect(node.stack.ip('-br', 'link')).not.toContain('podw');
});

test('a change of ipam.type across a restart: DEL releases an address at its own provider', async () => {
  const dataDir = join(node.stack.folder, 'former');
  const leases = () => readdirSync(join(dataDir, 'former')).filter((name) => /^[0-9a-f]/.test(name));
  const leased = { name: 'former', ipam: { type: 'host-local', dataDir, ranges: [[{ subnet: '192.0.2.0/24' }]] } };
  const own = { name: 'former', ipam: { type: 'podwire-ipam' } };
  const [a, b] = [node.pod('former-a'), node.pod('former-b')];
  await node.add(a, { config: own });
  await node.add(b, { config: leased });
  // podwire-ipam learns of the pod in the background.
  await expect.poll(() => [node.holders().length, leases().length]).toEqual([1, 1]);
  await node.stack.kill('node');
  await node.stack.start('node');
  const changed = [
    { pod: a, config: leased },
    { pod: b, config: own },
  ];
  for (const { pod, config } of [...changed, ...changed]) {
    expect(await node.call('DEL', pod, { config })).toMatchObject({ exitCode: 0, stdout: '' });
  }
  await expect.poll(() => [node.holders(), leases()]).toEqual([[], []]);
  expect(node.stack.ip('-br', 'link')).not.toContain('podw');
});
