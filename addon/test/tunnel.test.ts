import { describe, expect, it } from 'vitest';

import type { Namespace, VxlanAdd } from '../lib/index.js';
import { codes, ip, link0, link1, makePod, open, run, vethPair } from './ip.js';

/** The output of `bridge -j fdb` for a device. */
function bridgeFdb(pod: string, device: string): Record<string, unknown>[] {
  return JSON.parse(run('bridge', '-n', pod, '-j', 'fdb', 'show', 'dev', device) || '[]');
}

const MAC = '66:01:02:03:04:05';
const PEER_MAC = '66:0a:0b:0c:0d:0e';
const device = { name: 'vx' };

const CASES = [
  { family: 4, local: '192.0.2.1', mtuBytes: 1450, far: '192.0.2.9', other: '192.0.2.10', bits: 24 },
  { family: 6, local: '2001:db8::1', mtuBytes: 1430, far: '2001:db8::9', other: '2001:db8::10', bits: 64 },
] as const;

/** A node whose uplink has the local address. */
async function makeNode({ local, bits }: { readonly local: string; readonly bits: number }) {
  const pod = makePod();
  const [node, wire] = [await open(pod.path), await open(makePod().path)];
  const link = { name: link0 };
  const outcomes = await node.sequence([
    { ...vethPair(link0, wire), mtuBytes: 1500 },
    { type: 'link.set', link, up: true },
    { type: 'address.add', link, address: `${local}/${bits}`, noDad: true },
  ]);
  expect(codes(outcomes)).toEqual(['ok', 'ok', 'ok']);
  return { node, name: pod.name };
}

function vxlan(local: string, more: Partial<VxlanAdd> = {}): VxlanAdd {
  return { type: 'link.add', kind: 'vxlan', name: device.name, vni: 4096, local, mac: MAC, ...more };
}

async function getLink(namespace: Namespace, name: string) {
  const [outcome] = await namespace.batch([{ type: 'link.get', link: { name } }]);
  if (!outcome?.ok || !outcome.link) throw new Error(`no link ${name}`);
  return outcome.link;
}

describe.each(CASES)('a VXLAN device over IPv$family', ({ family, local, mtuBytes, far, other, bits }) => {
  it('is shown by ip, and is read back completely', async () => {
    const { node, name } = await makeNode({ local, bits });
    const parentIndex = (await getLink(node, link0)).index;
    const [made] = await node.batch([vxlan(local, { parent: { name: link0 }, mtuBytes, txQueueLength: 500 })]);
    const settings = { vni: 4096, port: 4789, local, group: null, parentIndex, learning: false, external: false };
    expect(made).toEqual({ ok: true });
    const link = { kind: 'vxlan', mac: MAC, mtuBytes, txQueueLength: 500, up: false, vxlan: settings, ipip: null };
    expect(await getLink(node, 'vx')).toMatchObject(link);
    const [shown] = ip('-n', name, 'link', 'show', 'vx');
    expect(shown).toMatchObject({ address: MAC, mtu: mtuBytes, txqlen: 500 });
    expect(shown!.linkinfo).toMatchObject({
      info_kind: 'vxlan',
      info_data: {
        id: 4096,
        port: 4789,
        link: link0,
        learning: false,
        [family === 4 ? 'local' : 'local6']: local,
      },
    });
  });

  it('can be created with another port, by the index of its parent or without one', async () => {
    const { node } = await makeNode({ local, bits });
    const parent = { index: (await getLink(node, link0)).index };
    const made = await node.batch([vxlan(local, { parent, port: 8472 }), vxlan(local, { name: 'vx1', vni: 7 })]);
    expect(codes(made)).toEqual(['ok', 'ok']);
    expect((await getLink(node, 'vx')).vxlan).toMatchObject({ port: 8472, parentIndex: parent.index });
    expect((await getLink(node, 'vx1')).vxlan).toMatchObject({ vni: 7, parentIndex: null, learning: false });
  });

  it('is created by a sequence whose earlier step created its parent', async () => {
    const node = await open(makePod().path);
    const outcomes = await node.sequence([
      vethPair(link0, node, link1),
      vxlan(local, { parent: { name: link1 } }),
      { type: 'link.set', link: device, up: true },
    ]);
    expect(codes(outcomes)).toEqual(['ok', 'ok', 'ok']);
    expect((await getLink(node, 'vx')).vxlan?.parentIndex).toBe((await getLink(node, link1)).index);
  });

  it('is refused twice, and without its parent', async () => {
    const { node } = await makeNode({ local, bits });
    const requests = [vxlan(local), vxlan(local), vxlan(local, { name: 'vx1' })];
    expect(codes(await node.batch(requests))).toEqual(['ok', 'EEXIST', 'EEXIST']);
    const [orphan] = await node.batch([vxlan(local, { name: 'vx2', vni: 2, parent: { name: 'none' } })]);
    expect(orphan).toMatchObject({ error: { code: 'ENODEV', object: 'vxlan vx2', kernelMessage: /link none/ } });
  });

  it('has forwarding entries that are added, replaced, listed and deleted', async () => {
    const { node, name } = await makeNode({ local, bits });
    await node.batch([vxlan(local, { parent: { name: link0 } })]);
    const entry = { link: device, mac: PEER_MAC, destination: far };
    const added = await node.batch([
      { type: 'fdb.add', ...entry },
      { type: 'fdb.add', ...entry },
      { type: 'fdb.replace', ...entry },
      { type: 'fdb.append', ...entry, destination: other },
      { type: 'fdb.append', ...entry, mac: '00:00:00:00:00:00', destination: far },
      { type: 'fdb.append', ...entry, mac: '00:00:00:00:00:00', destination: other },
    ]);
    expect(codes(added)).toEqual(['ok', 'EEXIST', 'ok', 'ok', 'ok', 'ok']);
    const linkIndex = (await getLink(node, 'vx')).index;
    const expected = { linkIndex, permanent: true, self: true, state: 0xc0 };
    const listed = await node.fdbEntries({ index: linkIndex });
    expect(listed).toEqual(
      expect.arrayContaining([
        { ...expected, mac: PEER_MAC, destination: far },
        { ...expected, mac: '00:00:00:00:00:00', destination: far },
        { ...expected, mac: '00:00:00:00:00:00', destination: other },
      ]),
    );
    expect(listed).toHaveLength(3);
    expect(bridgeFdb(name, 'vx')).toContainEqual({ mac: PEER_MAC, dst: far, flags: ['self'], state: 'permanent' });
    expect(codes(await node.batch([{ type: 'fdb.replace', ...entry, destination: other }]))).toEqual(['ok']);
    expect(bridgeFdb(name, 'vx')).toContainEqual(expect.objectContaining({ mac: PEER_MAC, dst: other }));
    const deleted = await node.batch([
      { type: 'fdb.delete', ...entry, destination: other },
      { type: 'fdb.delete', ...entry },
      { type: 'fdb.delete', link: device, mac: '00:00:00:00:00:00' },
    ]);
    expect(codes(deleted)).toEqual(['ok', 'ENOENT', 'ok']);
    expect(await node.fdbEntries({ index: linkIndex })).toEqual([]);
  });

  it('carries routes through a gateway on the link, by a permanent neighbour', async () => {
    const { node, name } = await makeNode({ local, bits });
    const gateway = family === 4 ? '10.65.9.0' : 'fd00:9::1';
    const destination = family === 4 ? '10.65.9.0/26' : 'fd00:9::/122';
    const outcomes = await node.sequence([
      vxlan(local, { parent: { name: link0 } }),
      { type: 'link.set', link: device, addressGeneration: 'none' },
      { type: 'link.set', link: device, up: true },
      { type: 'neighbour.replace', link: device, address: gateway, mac: PEER_MAC },
      { type: 'fdb.replace', link: device, mac: PEER_MAC, destination: far },
      { type: 'route.replace', destination, gateway, output: device, onlink: true, protocol: 80, metric: 512 },
      { type: 'route.replace', destination, gateway, output: device, onlink: true, protocol: 80, metric: 512 },
    ]);
    expect(codes(outcomes)).toEqual(['ok', 'ok', 'ok', 'ok', 'ok', 'ok', 'ok']);
    const shown = ip('-n', name, `-${family}`, 'route', 'show', 'protocol', '80');
    expect(shown).toMatchObject([{ dst: destination, gateway, dev: 'vx', flags: ['onlink'], metric: 512 }]);
    expect(await node.routes({ family, protocol: 80 })).toMatchObject([
      { destination, gateway, onlink: true, metric: 512, outputIndex: (await getLink(node, 'vx')).index },
    ]);
  });
});

describe('the settings of interfaces', () => {
  it('give both ends of a veth pair their queues', async () => {
    const pod = makePod();
    const [host, inside] = [await open(makePod().path), await open(pod.path)];
    const pair = vethPair(link0, inside);
    const near = { txQueueLength: 300, txQueueCount: 2, rxQueueCount: 3 };
    const far = { txQueueLength: 0, txQueueCount: 4, rxQueueCount: 1 };
    const outcomes = await host.batch([
      { ...pair, ...near, peer: { name: 'eth0', namespace: inside, ...far } },
      { type: 'link.get', link: { name: link0 } },
    ]);
    expect(outcomes).toMatchObject([{ link: near }, { link: near }]);
    expect(await getLink(inside, 'eth0')).toMatchObject(far);
    expect(ip('-n', pod.name, 'link', 'show', 'eth0')[0]).toMatchObject({ num_tx_queues: 4, num_rx_queues: 1 });
    const [set] = await inside.batch([{ type: 'link.set', link: { name: 'eth0' }, txQueueLength: 77 }]);
    expect(set).toMatchObject({ ok: true });
    expect(await getLink(inside, 'eth0')).toMatchObject({ ...far, txQueueLength: 77 });
  });

  it('keep a link from generating an IPv6 address', async () => {
    const node = await open(makePod().path);
    const links = [link0, link1].map((name) => ({ name }));
    const outcomes = await node.sequence([
      vethPair(link0, node, link1),
      { type: 'link.set', link: links[0]!, addressGeneration: 'none' },
      ...links.map((link) => ({ type: 'link.set', link, up: true }) as const),
    ]);
    expect(codes(outcomes)).toEqual(['ok', 'ok', 'ok', 'ok']);
    const [none, eui64] = await Promise.all(links.map(({ name }) => getLink(node, name)));
    expect([none!.addressGeneration, eui64!.addressGeneration]).toEqual(['none', 'eui64']);
    expect(await node.addresses({ index: none!.index })).toEqual([]);
    expect(await node.addresses({ index: eui64!.index })).toMatchObject([{ address: 'fe80::ff:fe00:1/64' }]);
  });

  it('report clearly that the kernel has no IPIP', async () => {
    const node = await open(makePod().path);
    const [outcome] = await node.batch([{ type: 'link.add', kind: 'ipip', name: 'ipip0', local: '192.0.2.1' }]);
    expect(outcome).toMatchObject({
      ok: false,
      error: {
        code: 'EOPNOTSUPP',
        operation: 'link.add',
        object: 'ipip ipip0',
        message: expect.stringContaining('the kernel lacks this feature'),
      },
    });
  });
});

describe('IPv6 routes', () => {
  it('may be blackholes, and differ by their metric', async () => {
    const node = await open(makePod().path);
    const blackhole = { destination: 'fd00:9::/122', routeType: 'blackhole', protocol: 80 } as const;
    const outcomes = await node.batch([
      { type: 'link.set', link: { name: 'lo' }, up: true },
      { type: 'route.add', ...blackhole },
      { type: 'route.add', ...blackhole },
      { type: 'route.add', ...blackhole, metric: 7 },
      { type: 'route.delete', ...blackhole, metric: 7 },
      { type: 'route.replace', ...blackhole },
    ]);
    expect(codes(outcomes)).toEqual(['ok', 'ok', 'EEXIST', 'ok', 'ok', 'ok']);
    expect(await node.routes({ protocol: 80 })).toMatchObject([
      { family: 6, destination: 'fd00:9::/122', routeType: 'blackhole', metric: 1024, gateway: null, outputIndex: 1 },
    ]);
  });
});
