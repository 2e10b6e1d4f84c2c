import { formatAddress } from '@podwire/shared/net/address';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import {
  addPod,
  cleanUp,
  intercept,
  canPing,
  removePod,
  requireThrowawayNamespace,
  run,
  snapshot,
  type InterceptedKernel,
} from '../testing/kernels.js';
import { address, BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { linkLocal } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** The whole dataplane on the real kernel: IPv6, both families, and several interfaces. */

const BOTH = BY_FAMILY['both families'];
const OTHER = { ...BOTH, addresses: [address('10.65.0.8'), address('fd65::8')] };
const NODE_ADDRESSES = ['198.18.0.1', 'fd99::1'] as const;

let kernel: InterceptedKernel;
let dataplane: PodWiring;
let lines: readonly Record<string, unknown>[];

const never = () => new AbortController().signal;
const attach = (network: PodNetwork) => dataplane.attach(network, never());
const check = async (network: PodNetwork) => (await dataplane.check(network, never())).map(({ object }) => object);
const inPod = (name: string, ...command: readonly string[]) => run('ip', 'netns', 'exec', name, ...command);
const sysctl = (key: string, value: string) => ['sysctl', '-q', '-w', `net.ipv6.conf.${key}=${value}`];

/** A namespace in which every setting differs from the wanted one, as some runtimes leave them, so that every step is needed. */
function pod(name: string, rest: Partial<PodNetwork> = {}): PodNetwork {
  addPod(name);
  inPod(name, 'sysctl', '-q', '-w', 'net.ipv4.ip_forward=1');
  inPod(name, ...sysctl('all.forwarding', '1'));
  inPod(name, ...sysctl('all.disable_ipv6', '1'));
  return podNetwork(name, rest);
}

beforeEach(async () => {
  requireThrowawayNamespace();
  for (const each of NODE_ADDRESSES) run('ip', 'address', 'replace', each, 'dev', 'lo');
  // The node's routing sets these where there are pools of IPv6.
  run(...(['sysctl', '-q', '-w', 'net.ipv6.conf.all.forwarding=1'] as const));
  kernel = intercept(await NetlinkKernel.open());
  const recording = recordingLog();
  lines = recording.lines;
  dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recording.log) });
});

afterEach(async () => {
  run('sysctl', '-q', '-w', 'net.ipv6.conf.all.disable_ipv6=0');
  await kernel.close();
  cleanUp();
});

describe('packets', () => {
  test('pass between pods and between pods and the node, at once and in both families', async () => {
    await attach(pod('a', BOTH));
    // The first packet is answered, without a wait for duplicate address detection.
    expect([canPing('10.65.0.7'), canPing('fd65::7')]).toEqual([true, true]);
    await attach(pod('b', OTHER));
    const pairs: [string, string][] = [
      ...OTHER.addresses.map((each): [string, string] => [formatAddress(each), 'a']),
      ...BOTH.addresses.map((each): [string, string] => [formatAddress(each), 'b']),
      ...NODE_ADDRESSES.map((each): [string, string] => [each, 'a']),
    ];
    expect(pairs.filter(([to, from]) => !canPing(to, from))).toEqual([]);
  });

  test('of IPv6-only pods pass as well', async () => {
    await attach(pod('a', BY_FAMILY.IPv6));
    await attach(pod('b', { ...BY_FAMILY.IPv6, addresses: [address('fd65::8')] }));
    expect([canPing('fd65::8', 'a'), canPing('fd65::7'), canPing('fd99::1', 'b')]).toEqual([true, true, true]);
    expect(inPod('a', 'ip', '-4', '-br', 'address', 'show', 'dev', 'eth0')).toBe('');
  });

  test('find the gateway where the node generates other link-local addresses', async () => {
    for (const mode of ['1', '3']) {
      run('sysctl', '-q', '-w', `net.ipv6.conf.default.addr_gen_mode=${mode}`);
      run('sysctl', '-q', '-w', 'net.ipv6.conf.default.disable_ipv6=1');
      const name = `mode${mode}`;
      const network = pod(name, { addresses: [address(`fd65::${mode}`)], routes: BY_FAMILY.IPv6.routes });
      await attach(network);
      run('sysctl', '-q', '-w', 'net.ipv6.conf.default.addr_gen_mode=0');
      run('sysctl', '-q', '-w', 'net.ipv6.conf.default.disable_ipv6=0');
      inPod(name, 'ip', 'neigh', 'flush', 'all', 'nud', 'permanent');
      // Asked for the address, the kernel answers once it has confirmed it, a moment after the carrier.
      await vi.waitFor(() => expect(canPing('fd99::1', name)).toBe(true), { timeout: 20_000 });
      // And again after the host's end was down.
      run('ip', 'link', 'set', network.hostInterfaceName, 'down');
      await attach(network);
      expect(await check(network)).toEqual([]);
      expect(canPing('fd99::1', name)).toBe(true);
    }
  });

  test('a given MAC address is the pod’s, also in its link-local address', async () => {
    const mac = '02:16:3e:12:34:56';
    await attach(pod('a', { ...BOTH, mac }));
    expect(JSON.parse(inPod('a', 'ip', '-j', 'link', 'show', 'dev', 'eth0'))).toMatchObject([{ address: mac }]);
    // The kernel creates it once it has the carrier.
    const own = () => inPod('a', 'ip', '-6', 'address', 'show', 'dev', 'eth0', 'scope', 'link', '-tentative');
    await vi.waitFor(() => expect(own()).toContain(`inet6 ${formatAddress(linkLocal(mac))}/64`), { timeout: 20_000 });
  });
});

const families = Object.entries(BY_FAMILY);

describe.each(families)('a pod of %s', (_, of) => {
  test('is unchanged when it is as wanted', async () => {
    const a = pod('a', of);
    await attach(a);
    const before = snapshot('a');
    expect(await attach(a)).toMatchObject({ changes: 0 });
    expect(snapshot('a')).toBe(before);
    expect(await check(a)).toEqual([]);
  });

  test('that fails at any step leaves everything unchanged', async () => {
    const a = pod('a', of);
    const before = snapshot('a');
    let position = 0;
    for (; ; position++) {
      kernel.refuseAfter(position);
      const result = await attach(a).catch((error: unknown) => error);
      if (!(result instanceof Error)) break;
      expect(result.message, `step ${position}`).toBe('refused by the test');
      expect(snapshot('a'), `step ${position}`).toBe(before);
    }
    expect(position).toBeGreaterThanOrEqual(15);
  });

  test('that fails at any step of a repair keeps what it has', async () => {
    const a = pod('a', of);
    await attach(a);
    const addresses = [address('fd65::9'), address('10.65.0.9')];
    const other = { ...a, ...BOTH, addresses, mac: '02:00:00:00:00:99', mtuBytes: 1400, ipForwarding: true };
    const before = snapshot('a');
    let position = 0;
    for (; ; position++) {
      kernel.refuseAfter(position);
      const result = await dataplane.repair(other, never()).catch((error: unknown) => error);
      if (!(result instanceof Error)) break;
      expect(result.message, `step ${position}`).toBe('refused by the test');
      expect(snapshot('a'), `step ${position}`).toBe(before);
    }
    expect(position).toBeGreaterThanOrEqual(9);
    expect(await check(other)).toEqual([]);
  });

  test('is recreated in a namespace that replaced the first', async () => {
    const a = pod('a', of);
    await attach(a);
    removePod('a');
    // While Linux 6.18 ends the first namespace, it once in some 600 times also removes a veth pair that is added meanwhile.
    await vi.waitFor(() => expect(run('ip', 'link')).not.toContain(a.hostInterfaceName), { timeout: 20_000 });
    const again = pod('a', of);
    await attach(again);
    expect(await check(again)).toEqual([]);
    expect(of.addresses.every((each) => canPing(formatAddress(each)))).toBe(true);
  });

  test('takes over the routes of an earlier pod with its addresses', async () => {
    await attach(pod('old', of));
    const next = pod('next', of);
    await attach(next);
    expect(await check(next)).toEqual([]);
    expect(of.addresses.every((each) => canPing(formatAddress(each)))).toBe(true);
    expect(lines.filter(({ msg }) => String(msg).includes('taken over'))).toHaveLength(of.addresses.length);
  });

  test('leaves nothing when it is detached', async () => {
    const a = pod('a', { ...of, ipForwarding: true });
    const before = snapshot();
    await attach(a);
    await dataplane.detach(a, never());
    expect(snapshot()).toBe(before);
  });
});

describe('a check', () => {
  const host = podNetwork('a').hostInterfaceName;
  const cases: readonly (readonly [string, readonly string[]])[] = [
    [`host link ${host}`, ['ip', 'link', 'set', host, 'down']],
    [`host link ${host} mtu`, ['ip', 'link', 'set', host, 'mtu', '1400']],
    [`host link ${host} txqueuelen`, ['ip', 'link', 'set', host, 'txqueuelen', '10']],
    // Its address and the route to the pod are deleted with it.
    [`host sysctl net.ipv6.conf.${host}.disable_ipv6`, sysctl('all.disable_ipv6', '1')],
    [`host sysctl net.ipv6.conf.${host}.proxy_ndp`, sysctl(`${host}.proxy_ndp`, '0')],
    [`host sysctl net.ipv6.conf.${host}.forwarding`, sysctl(`${host}.forwarding`, '0')],
    [`host sysctl net.ipv6.conf.${host}.accept_dad`, sysctl(`${host}.accept_dad`, '1')],
    [
      `host address fe80::ecee:eeff:feee:eeee/64 dev ${host}`,
      ['ip', 'address', 'delete', 'fe80::ecee:eeff:feee:eeee/64', 'dev', host],
    ],
    [`host route fd65::7 dev ${host} proto 87 metric 1024`, ['ip', 'route', 'delete', 'fd65::7']],
    ['pod sysctl net.ipv6.conf.lo.disable_ipv6', ['in', ...sysctl('lo.disable_ipv6', '1')]],
    ['pod address fd65::7 dev eth0', ['in', 'ip', 'address', 'delete', 'fd65::7/128', 'dev', 'eth0']],
    [
      'pod neighbour fe80::ecee:eeff:feee:eeee dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
      ['in', 'ip', 'neigh', 'delete', 'fe80::ecee:eeff:feee:eeee', 'dev', 'eth0'],
    ],
    [
      'pod route default via fe80::ecee:eeff:feee:eeee dev eth0 proto 87 metric 1024',
      ['in', 'ip', '-6', 'route', 'delete', 'default'],
    ],
    [
      'pod neighbour 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
      ['in', 'ip', 'link', 'set', 'eth0', 'address', '02:00:00:00:00:99'],
    ],
    [`host link ${host}`, ['ip', 'link', 'delete', host]],
  ];

  test.each(cases)('names %s first, and an attach repairs it', async (object, [first = '', ...rest]) => {
    const a = pod('a', { ...BOTH, txQueueLength: 500 });
    await attach(a);
    if (first === 'in') inPod('a', ...rest);
    else run(first, ...rest);
    expect((await check(a))[0]).toBe(object);
    await attach(a);
    expect(await check(a)).toEqual([]);
  });
});

describe('several interfaces of one pod', () => {
  const second = (first: PodNetwork, interfaceName: string, number: number): PodNetwork =>
    podNetwork(first.attachment.containerId, {
      ...BOTH,
      addresses: [address(`10.65.1.${number}`), address(`fd65::1:${number}`)],
      attachment: { ...first.attachment, interfaceName },
      hostInterfaceName: `podwsecond${number}`,
      mac: `02:00:00:00:01:0${number}`,
    });

  test('are wired at the same time, checked, and detached separately', async () => {
    const first = pod('a', BOTH);
    const all = [first, ...[1, 2, 3].map((number) => second(first, `net${number}`, number))];
    await Promise.all(all.map(attach));
    for (const each of all) expect(await check(each)).toEqual([]);
    const metrics = (...family: readonly string[]) =>
      JSON.parse(inPod('a', 'ip', '-j', ...family, 'route', 'show', 'default')).map(
        ({ metric = 0 }: { metric?: number }) => metric,
      );
    expect(metrics('-4')).toEqual([0, 1, 2, 3]);
    expect(metrics('-6')).toEqual([1024, 1025, 1026, 1027]);
    const ping = ({ attachment }: PodNetwork, to: string) =>
      inPod('a', 'ping', '-n', '-q', '-c', '1', '-W', '2', '-I', attachment.interfaceName, to);
    for (const each of all) for (const to of NODE_ADDRESSES) expect(ping(each, to)).toContain('1 received');
    await dataplane.detach(first, never());
    for (const each of all.slice(1)) expect(await check(each)).toEqual([]);
    await attach(first);
    expect(await check(first)).toEqual([]);
  });

  test('have their queues, and a different number of them is refused', async () => {
    const first = pod('a', { ...BOTH, queueCount: 3, txQueueLength: 77 });
    await attach(first);
    const shown = JSON.parse(run('ip', '-d', '-j', 'link', 'show', first.hostInterfaceName));
    expect(shown).toMatchObject([{ num_tx_queues: 3, num_rx_queues: 3, txqlen: 77 }]);
    const inside = JSON.parse(inPod('a', 'ip', '-d', '-j', 'link', 'show', 'eth0'));
    expect(inside).toMatchObject([{ num_tx_queues: 3, num_rx_queues: 3, txqlen: 77 }]);
    expect(await check(first)).toEqual([]);
    await expect(attach({ ...first, queueCount: 4 })).rejects.toMatchObject({ code: 'INTERFACE_EXISTS' });
    expect(await check({ ...first, queueCount: 4 })).toEqual([`host link ${first.hostInterfaceName} numtxqueues`]);
  });
});

test('a node without IPv6 refuses pods of IPv6, and serves pods of IPv4', async () => {
  const [a, b] = [pod('a', BOTH), pod('b', BY_FAMILY.IPv4)];
  const before = snapshot('a');
  // This node is like a kernel that was started with ipv6.disable=1.
  run('mount', '-t', 'tmpfs', 'tmpfs', '/proc/sys/net/ipv6');
  try {
    const failure = { code: 'KERNEL_UNSUPPORTED', message: expect.stringContaining('has no IPv6') };
    await expect(attach(a)).rejects.toMatchObject(failure);
    await attach(b);
    expect(await check(b)).toEqual([]);
    expect(canPing('10.65.0.7')).toBe(true);
    await dataplane.detach(b, never());
  } finally {
    run('umount', '/proc/sys/net/ipv6');
  }
  expect(snapshot('a')).toBe(before);
});
