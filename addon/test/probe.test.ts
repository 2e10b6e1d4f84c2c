import { closeSync } from 'node:fs';

import { expect, it } from 'vitest';

import { makeNamespace } from '../lib/index.js';
import { failureOf, makePod, open, run } from './ip.js';

const FAMILIES = [
  ['IPv4', { near: '192.0.2.1', far: '192.0.2.2', beyond: '198.51.100.1', none: '203.0.113.1' }],
  ['IPv6', { near: '2001:db8::1', far: '2001:db8::2', beyond: '2001:db8:1::1', none: '2001:db8:2::1' }],
] as const;

/** Two namespaces with a link; the far one forwards, and has a smaller MTU on its other side. */
async function makePair() {
  const [near, far] = [makePod(), makePod()];
  run('ip', '-n', near.name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', far.name);
  run('ip', '-n', far.name, 'link', 'add', 'eth1', 'mtu', '1300', 'type', 'veth', 'peer', 'eth2');
  for (const [name, address] of [
    [near.name, '192.0.2.1/24'],
    [near.name, '2001:db8::1/64'],
    [far.name, '192.0.2.2/24'],
    [far.name, '2001:db8::2/64'],
  ] as const)
    run('ip', '-n', name, 'address', 'add', address, 'dev', 'eth0', ...(address.includes(':') ? ['nodad'] : []));
  for (const [name, link] of [
    [near.name, 'eth0'],
    [far.name, 'eth0'],
    [far.name, 'eth1'],
    [far.name, 'eth2'],
  ] as const)
    run('ip', '-n', name, 'link', 'set', link, 'up');
  const forward = 'echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding';
  run('ip', 'netns', 'exec', far.name, 'sh', '-c', forward);
  for (const [from, to] of [
    ['198.51.100.0/24', '192.0.2.2'],
    ['2001:db8:1::/64', '2001:db8::2'],
  ] as const) {
    run('ip', '-n', far.name, 'route', 'add', from, 'dev', 'eth1');
    run('ip', '-n', near.name, 'route', 'add', from, 'via', to);
  }
  return { near: await open(near.path), far: await open(far.path), farName: far.name };
}

it.each(FAMILIES)('%s: distinguishes an answer from a refusal, a missing route and silence', async (_, addresses) => {
  const { near, far, farName } = await makePair();
  const { far: address, none } = addresses;
  const listening = await far.listenTcp(7000);
  // A link that was just set up accepts no IPv6 until the kernel has checked it.
  await expect.poll(async () => (await near.probe([{ address }], { timeoutMs: 500 }))[0]?.error).toBeUndefined();
  const tcp = [7000, 7001].map((port) => ({ address, port }));
  const probes = [{ address, payloadBytes: 1000 }, ...tcp, { address: none }, { address, port: 7000, udp: true }];
  expect(await near.probe(probes, { timeoutMs: 2000 })).toMatchObject([
    { ms: expect.any(Number) },
    { ms: expect.any(Number) },
    { error: { code: 'ECONNREFUSED' } },
    { error: { code: 'ENETUNREACH' } },
    { error: { code: 'ECONNREFUSED', reporter: address } },
  ]);
  closeSync(listening);
  run('ip', 'netns', 'exec', farName, 'nft', 'table inet t { chain c { type filter hook input priority 0; drop; }; }');
  const silent = await near.probe([{ address }, { address, port: 7000 }], { timeoutMs: 100 });
  expect(silent).toMatchObject([{ error: { code: 'ETIMEDOUT' } }, { error: { code: 'ETIMEDOUT' } }]);
});

it.each(FAMILIES)('%s: names the host that refused a packet, and the MTU of the path', async (_, addresses) => {
  const { near, farName } = await makePair();
  const { far, beyond } = addresses;
  await expect.poll(async () => (await near.probe([{ address: far }], { timeoutMs: 500 }))[0]?.error).toBeUndefined();
  const big = { address: beyond, payloadBytes: 1400 };
  const [small, large, huge] = await near.probe([{ address: beyond }, big, { address: far, payloadBytes: 2000 }], {
    timeoutMs: 300,
  });
  expect(small).toMatchObject({ error: { code: 'ETIMEDOUT' } });
  expect(large).toMatchObject({ error: { code: 'EMSGSIZE', reporter: far, mtuBytes: 1300 } });
  expect(huge).toMatchObject({ error: { code: 'EMSGSIZE', mtuBytes: 1500 } });
  expect(huge!.error).not.toHaveProperty('reporter');
  const rule = 'table inet t { chain c { type filter hook forward priority 0; reject with icmpx admin-prohibited; }; }';
  run('ip', 'netns', 'exec', farName, 'nft', rule);
  const [refused] = await near.probe([{ address: beyond }], { timeoutMs: 1000 });
  expect(refused?.error?.reporter).toBe(far);
});

it('makes a namespace that ends with its descriptor', async () => {
  const descriptor = await makeNamespace();
  const path = `/proc/self/fd/${descriptor}`;
  const made = await open(path);
  expect((await made.links()).map(({ name }) => name)).toContain('lo');
  const own = await open();
  expect(made.identity).not.toEqual(own.identity);
  closeSync(descriptor);
  expect(await failureOf(open(path))).toMatchObject({ operation: 'namespace.open' });
});

it.each([
  ['no address', { address: 'web' }, 'probes[0].address'],
  ['port 0', { address: '192.0.2.1', port: 0 }, 'probes[0].port'],
  ['too many bytes', { address: '192.0.2.1', payloadBytes: 70_000 }, 'probes[0].payloadBytes'],
])('refuses %s', async (_, probe, path) => {
  const namespace = await open();
  expect(await failureOf(namespace.probe([probe]))).toMatchObject({ name: 'ArgumentError', path });
});
