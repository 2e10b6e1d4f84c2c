import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { HOST_MAC } from '@podwire/shared/attachment/names';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import type { Kernel } from '../pods/kernel.js';
import { PodWiring } from '../pods/pods.js';
import {
  addPod,
  canPing,
  cleanUp,
  intercept,
  type InterceptedKernel,
  removePod,
  requireThrowawayNamespace,
  run,
  snapshot,
} from '../testing/kernels.js';
import { address, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { describeSharedAddresses } from '../testing/contracts/record-store-contract.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** The whole dataplane on the real kernel. */

/** Steps of a new pod, where the kernel has everything. */
const FRESH_STEPS = 17;

/** The optional ones among them, which cannot fail a plan. */
const OPTIONAL = [3, 7, 8];

const NODE_ADDRESS = '198.18.0.1';

let kernel: InterceptedKernel;
let dataplane: PodWiring;

const never = () => new AbortController().signal;
const detachment = ({ attachment, hostInterfaceName }: PodNetwork) => ({ attachment, hostInterfaceName });

function pod(name: string, rest: Partial<PodNetwork> = {}): PodNetwork {
  addPod(name);
  // Another value than is wanted, so that every step of a plan is needed.
  run('ip', 'netns', 'exec', name, 'sysctl', '-q', '-w', 'net.ipv4.ip_forward=1');
  return podNetwork(name, rest);
}

beforeEach(async () => {
  requireThrowawayNamespace();
  run('ip', 'address', 'replace', `${NODE_ADDRESS}/32`, 'dev', 'lo');
  kernel = intercept(await NetlinkKernel.open());
  dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
});

afterEach(async () => {
  await kernel.close();
  cleanUp();
});

describe('packets', () => {
  test('pass between pods, and between pods and the node', async () => {
    const [a, b] = [pod('a'), pod('b', { addresses: [address('10.65.0.8')] })];
    await dataplane.attach(a, never());
    await dataplane.attach(b, never());
    expect([
      canPing('10.65.0.8', 'a'),
      canPing('10.65.0.7', 'b'),
      canPing('10.65.0.7'),
      canPing('10.65.0.8'),
      canPing(NODE_ADDRESS, 'a'),
      canPing(NODE_ADDRESS, 'b'),
    ]).toEqual(Array<boolean>(6).fill(true));
  });

  test('need the neighbour entry when the node has no route to the gateway’s address', async () => {
    const [a, b] = [pod('a'), pod('b', { addresses: [address('10.65.0.8')] })];
    await dataplane.attach(a, never());
    await dataplane.attach(b, never());
    expect(run('ip', 'route', 'show', 'default')).toBe('');
    run('ip', '-n', 'a', 'neigh', 'delete', '169.254.1.1', 'dev', 'eth0');
    expect(canPing('10.65.0.8', 'a')).toBe(false);
    run('ip', '-n', 'a', 'neigh', 'flush', 'dev', 'eth0');
    expect(await dataplane.attach(a, never())).toMatchObject({ changes: 1 });
    expect(canPing('10.65.0.8', 'a')).toBe(true);
  });

  test('with the address of another pod are dropped at the node’s interface', async () => {
    const [a, b] = [pod('a'), pod('b', { addresses: [address('10.65.0.8')] })];
    await dataplane.attach(a, never());
    await dataplane.attach(b, never());
    run('ip', '-n', 'a', 'address', 'add', '10.65.0.99/32', 'dev', 'eth0');
    const spoofed = () =>
      run('ip', 'netns', 'exec', 'a', 'ping', '-n', '-q', '-c', '1', '-W', '1', '-I', '10.65.0.99', '10.65.0.8');
    expect(spoofed).toThrow();
    const dropped = run('nstat', '-a', '-s', '-z', 'TcpExtIPReversePathFilter');
    expect(Number(/IPReversePathFilter\s+(\d+)/.exec(dropped)?.[1])).toBeGreaterThan(0);
  });
});

describe('attach', () => {
  test('a second time changes nothing, and no step is applied', async () => {
    const a = pod('a');
    expect(await dataplane.attach(a, never())).toMatchObject({ changes: FRESH_STEPS });
    const [before, steps] = [snapshot('a'), kernel.finished.length];
    expect(await dataplane.attach(a, never())).toMatchObject({ changes: 0 });
    expect(kernel.finished).toHaveLength(steps);
    expect(snapshot('a')).toBe(before);
    expect(await dataplane.check(a, never())).toEqual([]);
  });

  const positions = Array.from({ length: FRESH_STEPS }, (_, at) => at).filter((at) => !OPTIONAL.includes(at));

  test.each(positions)('that fails at step %i leaves everything as it was', async (position) => {
    const a = pod('a');
    const before = snapshot('a');
    kernel.refuseAfter(position);
    await expect(dataplane.attach(a, never())).rejects.toMatchObject({ message: 'refused by the test' });
    expect(kernel.refused).toBe(true);
    expect(snapshot('a')).toBe(before);
  });

  test('that fails at any step of a repair restores the state before', async () => {
    const a = pod('a');
    await dataplane.attach(a, never());
    const other = {
      ...a,
      mac: '02:00:00:00:00:99',
      mtuBytes: 1400,
      ipForwarding: true,
      addresses: [address('10.65.0.9')],
    };
    const before = snapshot('a');
    const steps = 9;
    const results: string[] = [];
    for (let position = 0; position < steps; position++) {
      // The kernel itself refuses the plan for a new pod, as the pair exists.
      kernel.refuseAfter(FRESH_STEPS + position);
      const attaching = dataplane.attach(other, never());
      await expect(attaching, `step ${position}`).rejects.toMatchObject({ message: 'refused by the test' });
      expect(kernel.refused).toBe(true);
      results.push(snapshot('a'));
    }
    expect(results).toEqual(Array<string>(steps).fill(before));
  });

  test('repairs manual changes', async () => {
    const a = pod('a');
    await dataplane.attach(a, never());
    const before = snapshot('a');
    run('ip', 'route', 'delete', '10.65.0.7');
    run('ip', '-n', 'a', 'route', 'delete', 'default');
    run('ip', '-n', 'a', 'link', 'set', 'eth0', 'mtu', '9000');
    run('sysctl', '-q', '-w', `net.ipv4.conf.${a.hostInterfaceName}.rp_filter=0`);
    expect((await dataplane.check(a, never())).map(({ object }) => object)).toEqual([
      `host sysctl net.ipv4.conf.${a.hostInterfaceName}.rp_filter`,
      'pod link eth0 mtu',
      'pod route default via 169.254.1.1 dev eth0 proto 87',
      `host route 10.65.0.7 dev ${a.hostInterfaceName} proto 87 scope link`,
    ]);
    expect(await dataplane.attach(a, never())).toMatchObject({ changes: 4 });
    expect(snapshot('a')).toBe(before);
  });

  test('continues with a pair that a killed service created but did not record', async () => {
    const a = pod('a');
    const peer = ['type', 'veth', 'peer', 'name', 'eth0', 'address', a.mac, 'netns', 'a'];
    run('ip', 'link', 'add', a.hostInterfaceName, 'address', HOST_MAC, ...peer);
    await dataplane.attach(a, never());
    expect(await dataplane.check(a, never())).toEqual([]);
    expect(canPing('10.65.0.7')).toBe(true);
  });

  test('recreates the wire in a namespace that replaced the first', async () => {
    const a = pod('a');
    await dataplane.attach(a, never());
    addPod('b');
    expect(await dataplane.attach({ ...a, netns: '/run/netns/b' }, never())).toMatchObject({ pod: { name: 'eth0' } });
    expect(run('ip', '-n', 'a', '-br', 'link')).not.toContain('eth0');
    expect(await dataplane.check({ ...a, netns: '/run/netns/b' }, never())).toEqual([]);
    expect(canPing('10.65.0.7')).toBe(true);
  });

  test('takes over the route of an earlier pod', async () => {
    const [old, next] = [pod('old'), pod('next')];
    await dataplane.attach(old, never());
    await dataplane.attach(next, never());
    expect(JSON.parse(run('ip', '-j', 'route', 'show', '10.65.0.7'))).toMatchObject([{ dev: next.hostInterfaceName }]);
    expect(canPing('10.65.0.7')).toBe(true);
  });
});

describe('a refused call changes nothing', () => {
  const foreign = (...at: readonly string[]) => run('ip', ...at, 'type', 'bridge');
  const cases: readonly (readonly [string, string, (a: PodNetwork) => Partial<PodNetwork>])[] = [
    ['a path with nothing at it', 'INVALID_NETNS', () => ({ netns: '/run/netns/nowhere' })],
    ['a file', 'INVALID_NETNS', () => ({ netns: '/etc/hostname' })],
    ['a directory', 'INVALID_NETNS', () => ({ netns: '/run/netns' })],
    ['a namespace of another kind', 'INVALID_NETNS', () => ({ netns: '/proc/self/ns/mnt' })],
    ['the node’s own namespace', 'INVALID_NETNS', () => ({ netns: '/proc/self/ns/net' })],
    [
      'an existing interface of the pod',
      'INTERFACE_EXISTS',
      () => {
        foreign('-n', 'a', 'link', 'add', 'eth0');
        return {};
      },
    ],
    [
      'a foreign host interface',
      'HOST_INTERFACE_TAKEN',
      (a) => {
        foreign('link', 'add', a.hostInterfaceName);
        return {};
      },
    ],
    [
      'a foreign route to the address',
      'ROUTE_TAKEN',
      () => {
        foreign('link', 'add', 'br0');
        run('ip', 'link', 'set', 'br0', 'up');
        run('ip', 'route', 'add', '10.65.0.7', 'dev', 'br0');
        return {};
      },
    ],
  ];

  test.each(cases)('%s: %s', async (_, code, prepare) => {
    const a = pod('a');
    const network = { ...a, ...prepare(a) };
    const before = snapshot('a');
    await expect(dataplane.attach(network, never())).rejects.toMatchObject({ code });
    expect(snapshot('a')).toBe(before);
  });

  test('a named pipe does not block the call', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'podwire-pipe-'));
    run('mkfifo', join(folder, 'pipe'));
    const attaching = dataplane.attach(podNetwork('a', { netns: join(folder, 'pipe') }), never());
    await expect(attaching).rejects.toMatchObject({ code: 'INVALID_NETNS' });
    rmSync(folder, { recursive: true });
  });

  test('a detach of another attachment’s interface', async () => {
    const a = pod('a');
    await dataplane.attach(a, never());
    const before = snapshot('a');
    const wrong = { attachment: podNetwork('b').attachment, hostInterfaceName: a.hostInterfaceName };
    await expect(dataplane.detach(wrong, never())).rejects.toMatchObject({ code: 'HOST_INTERFACE_TAKEN' });
    expect(snapshot('a')).toBe(before);
  });
});

describe('detach', () => {
  test('leaves neither ends nor routes when it returns', async () => {
    const a = pod('a');
    run('ip', 'netns', 'exec', 'a', 'sysctl', '-q', '-w', 'net.ipv4.ip_forward=0');
    const before = snapshot('a');
    await dataplane.attach(a, never());
    expect(await dataplane.detach(detachment(a), never())).toBe(true);
    expect(snapshot('a')).toBe(before);
    expect(await dataplane.detach(detachment(a), never())).toBe(false);
  });

  test('works when the pod’s namespace is gone', async () => {
    const a = pod('a');
    await dataplane.attach(a, never());
    removePod('a');
    await dataplane.detach(detachment(a), never());
    expect(run('ip', '-br', 'link')).not.toContain(a.hostInterfaceName);
    expect(run('ip', 'route', 'show', '10.65.0.7')).toBe('');
  });

  test('and attach of fifty pods concurrently leave nothing', async () => {
    const pods = Array.from({ length: 50 }, (_, at) =>
      pod(`p${at}`, { addresses: [address(`10.65.1.${at}`)], ipForwarding: true }),
    );
    const names = pods.map((network) => network.attachment.containerId);
    const before = snapshot(...names);
    await Promise.all(pods.map((network) => dataplane.attach(network, never())));
    const links = await dataplane.list();
    expect(links.map((link) => link.addresses)).toHaveLength(50);
    expect(links.every((link) => link.link.running)).toBe(true);
    const again = pods.map((network) => dataplane.attach(network, never()));
    const gone = pods.map((network) => dataplane.detach(detachment(network), never()));
    expect((await Promise.all(again)).map(({ changes }) => changes)).toEqual(Array<number>(50).fill(0));
    expect(await Promise.all(gone)).toEqual(Array<boolean>(50).fill(true));
    expect(snapshot(...names)).toBe(before);
  }, 180_000);

  test('during an attach of the same attachment waits for it', async () => {
    const a = pod('a', { ipForwarding: true });
    const before = snapshot('a');
    for (let round = 0; round < 20; round++) {
      const attaching = dataplane.attach(a, never());
      const detaching = dataplane.detach(detachment(a), never());
      expect([(await attaching).changes, await detaching]).toEqual([FRESH_STEPS - 1, true]);
    }
    expect(snapshot('a')).toBe(before);
  });
});

/** Cases of `pods/conflicts.test.ts`, which has the fake kernel. */
describe('two pods', () => {
  let opened: Kernel | undefined;

  afterEach(async () => {
    await opened?.close();
    cleanUp();
  });

  describeSharedAddresses(async () => {
    requireThrowawayNamespace();
    const shared = await NetlinkKernel.open();
    opened = shared;
    return {
      kernel: shared,
      addPod,
      print: () => JSON.stringify(snapshot('first', 'second')),
      deviceOf: (address) => / dev (\S+)/.exec(run('ip', 'route', 'get', address))?.[1] ?? '',
      removeLink: (name) => void run('ip', 'link', 'delete', name),
    };
  });
});
