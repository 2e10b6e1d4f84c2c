import { setTimeout as delay } from 'node:timers/promises';

import { formatPrefix } from '@podwire/shared/net/prefix';
import { systemClock } from '@podwire/shared/runtime/clock';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import {
  blackhole,
  runCommand,
  clearNode,
  netlinkNodeFixture,
  canPing,
  run,
  unicast,
  vxlan,
  type NodeKernelFixture,
} from '../testing/kernels.js';
import { differences } from '../testing/routes-oracle.js';
import { FOREIGN, FOREIGN_CLEARED, commandSteps, RESTORE, restSteps, wantedSteps } from '../testing/routes-walk.js';
import { routesOf, startLoop, type Loop } from '../testing/routes.js';
import type { NodeKernel } from './kernel.js';
import type { NodeStep } from './step.js';
import type { WantedNode } from './wanted.js';

/** A kernel in front of another one that counts its calls. */
class CountingKernel implements NodeKernel {
  readonly steps: NodeStep[] = [];
  observations = 0;
  readonly #kernel: NodeKernel;

  constructor(kernel: NodeKernel) {
    this.#kernel = kernel;
  }

  abilities: NodeKernel['abilities'] = () => this.#kernel.abilities();
  watch: NodeKernel['watch'] = (listener) => this.#kernel.watch(listener);
  close: NodeKernel['close'] = () => this.#kernel.close();
  observe: NodeKernel['observe'] = (scope) => {
    this.observations++;
    return this.#kernel.observe(scope);
  };
  apply: NodeKernel['apply'] = (steps) => {
    this.steps.push(...steps);
    return this.#kernel.apply(steps);
  };
}

let fixture: NodeKernelFixture;
let kernel: CountingKernel;
let loop: Loop;

function start(options: { readonly checkIntervalMs?: number } = {}): void {
  kernel = new CountingKernel(fixture.kernel);
  loop = startLoop({ kernel, clock: systemClock, ...options });
}

beforeEach(async () => {
  fixture = await netlinkNodeFixture();
});

afterEach(async () => {
  await loop.reconciler.stop();
  await fixture.destroy();
});

const left = () => differences(fixture.kernel, loop.planner.wanted);

/** Waits until the kernel is as wanted, and the loop reports it. */
async function reached(): Promise<void> {
  await expect.poll(left, { timeout: 25_000, interval: 20 }).toEqual([]);
  await expect.poll(() => loop.reconciler.status().state, { timeout: 25_000 }).toBe('as-wanted');
}

/** Waits until the kernel gets no more calls, in several polls, as a busy machine may delay one. */
async function quiet(): Promise<void> {
  let before = -1;
  for (let still = 0; still < 4; still++) {
    await delay(100);
    const asked = kernel.observations + kernel.steps.length;
    if (asked !== before) still = 0;
    before = asked;
  }
}

function attempt(command: string): void {
  try {
    runCommand(command);
  } catch {
    // The kernel refuses commands for missing objects.
  }
}

describe('the real kernel', () => {
  const wanted: WantedNode = {
    tunnels: [vxlan],
    routes: routesOf(
      unicast('10.65.1.0/26', '10.65.1.1'),
      unicast('10.65.2.0/26', '10.0.0.2', 'up0'),
      unicast('fd65:1::/122', 'fd00::2', 'up0'),
      blackhole('10.65.0.0/26'),
    ),
    peers: [{ device: vxlan.name, tunnelAddress: '10.65.1.1', mac: '66:00:00:00:00:02', nodeAddress: '10.0.0.2' }],
    sysctls: [{ key: ['net', 'ipv4', 'ip_forward'], value: '1' }],
    conditions: [],
  };

  beforeEach(() => fixture.addParent('up0', '10.0.0.1/24', 'fd00::1/64'));

  test('reaches the wanted state; applying it again writes nothing, also after a restart', async () => {
    start();
    loop.setWanted(wanted);
    await reached();
    await quiet();
    const [steps, observations] = [kernel.steps.length, kernel.observations];
    loop.setWanted({ ...wanted, routes: new Map(wanted.routes) });
    loop.reconciler.check();
    await quiet();
    expect([kernel.steps.length, kernel.observations]).toEqual([steps, observations + 1]);
    await loop.reconciler.stop();
    start();
    loop.setWanted(wanted);
    await reached();
    expect(kernel.steps).toEqual([]);
    expect(loop.reconciler.status().driftCount).toBe(0);
  });

  test('names the device that another program left with the VXLAN network identifier and port', async () => {
    runCommand('ip link add vxlan.calico type vxlan id 4096 dstport 4789 local 10.0.0.1 dev up0 nolearning');
    start();
    loop.setWanted(wanted);
    const messages = () => loop.reconciler.conditions().map(({ reason, message }) => `${reason}: ${message}`);
    const leftover = expect.stringMatching(
      /^DeviceTaken: interface vxlan\.calico .*run: ip link delete vxlan\.calico$/,
    );
    await expect.poll(messages, { timeout: 25_000 }).toEqual(expect.arrayContaining([leftover]));
    runCommand('ip link delete vxlan.calico');
    await reached();
    expect(messages()).toEqual([]);
  });

  test('plans with the subnets that the node is connected to, as they come and go', async () => {
    const connected = () => loop.planner.facts?.connected.map(formatPrefix);
    start();
    loop.setWanted({ ...wanted, tunnels: [{ ...vxlan, address: '10.65.0.1/32' }] });
    await expect.poll(connected, { timeout: 25_000 }).toEqual(['10.0.0.0/24', '127.0.0.0/8', 'fd00::/64']);
    runCommand('ip address add 198.51.100.7/25 dev up0');
    await expect
      .poll(connected, { timeout: 25_000 })
      .toEqual(['10.0.0.0/24', '127.0.0.0/8', '198.51.100.0/25', 'fd00::/64']);
  });

  test('10,000 routes: all in one round; a changed one is one step; a clean check writes nothing', async () => {
    start();
    const many = Array.from({ length: 10_000 }, (_, number) =>
      unicast(`10.${100 + (number >> 10)}.${(number >> 2) & 255}.${(number & 3) * 64}/26`, '10.65.1.1'),
    );
    loop.setWanted({ ...wanted, routes: routesOf(...many) });
    await reached();
    await quiet();
    const before = kernel.steps.length;
    // The notifications of 10,000 own changes cause no reading.
    expect(kernel.observations).toBeLessThan(6);
    const { observations } = kernel;
    loop.setWanted({ ...wanted, routes: routesOf(...many.slice(1), { ...many[0]!, gateway: '10.65.1.2' }) });
    await reached();
    await quiet();
    expect(kernel.steps.slice(before).map(({ type }) => type)).toEqual(['route-replace']);
    expect(kernel.observations).toBe(observations);
    loop.reconciler.check();
    await quiet();
    expect([kernel.steps.length, kernel.observations]).toEqual([before + 1, observations + 1]);
  });

  test.each([
    'ip route delete 10.65.1.0/26',
    'ip route delete fd65:1::/122',
    'ip route replace 10.65.1.0/26 via 10.0.0.9 dev up0 proto 87',
    'ip route append 10.65.1.0/26 via 10.0.0.9 dev up0 proto 87',
    'ip neighbour delete 10.65.1.1 dev vxlan4.podwire',
    'bridge fdb delete 66:00:00:00:00:02 dev vxlan4.podwire dst 10.0.0.2',
    'ip address delete 10.65.0.1/32 dev vxlan4.podwire',
    'ip link set vxlan4.podwire down',
    'ip link set vxlan4.podwire mtu 1300',
    'ip link delete vxlan4.podwire',
  ])('is repaired at once after: %s', async (command) => {
    start();
    loop.setWanted(wanted);
    await reached();
    await quiet();
    runCommand(command);
    await expect.poll(() => loop.reconciler.status().driftCount, { timeout: 25_000 }).toBeGreaterThan(0);
    await reached();
  });

  test('a tunnel that Podwire recreates, and a peer that moves, do not count as drift', async () => {
    start();
    loop.setWanted(wanted);
    await reached();
    for (const host of [5, 6, 7, 8]) {
      const peers = wanted.peers.map((peer) => ({ ...peer, nodeAddress: `10.0.0.${host + 10}` }));
      const before = kernel.steps.length;
      loop.setWanted({ ...wanted, tunnels: [{ ...vxlan, local: `10.0.0.${host}` }], peers });
      await reached();
      await quiet();
      const made = ['device-delete', 'device-add', 'device-set', 'address-add', 'forwarding-set', 'neighbour-set'];
      expect(kernel.steps.slice(before).map(({ type }) => type)).toEqual([...made, 'route-add']);
    }
    expect([loop.reconciler.status().driftCount, loop.lines()]).toEqual([0, []]);
  });

  test('loses everything with the parent interface, and is restored with it', async () => {
    start();
    loop.setWanted(wanted);
    await reached();
    runCommand('ip link set up0 down');
    await expect
      .poll(() => loop.reconciler.status().conditions.map(({ reason }) => reason))
      .toContain('DeviceUnavailable');
    runCommand('ip link set up0 up');
    runCommand('ip address replace fd00::1/64 dev up0 nodad');
    await reached();
    runCommand('ip link delete up0');
    await expect
      .poll(() => loop.reconciler.status().conditions.map(({ reason }) => reason))
      .toContain('DeviceUnavailable');
    fixture.addParent('up0', '10.0.0.1/24', 'fd00::1/64');
    await reached();
  });

  test('a route of another program stays, and is reported', async () => {
    start();
    runCommand('ip route add 10.65.1.0/26 via 10.0.0.9 dev up0 proto 4');
    loop.setWanted(wanted);
    await expect.poll(() => loop.reconciler.status().conditions.map(({ reason }) => reason)).toEqual(['RouteTaken']);
    await quiet();
    expect(run('ip', 'route', 'show', '10.65.1.0/26')).toContain('proto static');
    runCommand('ip route delete 10.65.1.0/26');
    await reached();
    runCommand('ip route replace 10.65.1.0/26 via 10.0.0.9 dev up0 proto 4');
    await expect.poll(() => loop.reconciler.status().conditions.map(({ reason }) => reason)).toEqual(['RouteTaken']);
    await quiet();
    expect(run('ip', 'route', 'show', '10.65.1.0/26')).toContain('proto static');
    runCommand('ip route delete 10.65.1.0/26');
    await reached();
  });

  test('each node reaches the other node’s tunnel address by real VXLAN', async () => {
    run('ip', 'netns', 'add', 'peer');
    const peer = (...words: string[]) => run('ip', '-n', 'peer', ...words);
    run('ip', 'link', 'add', 'up1', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'peer');
    run('ip', 'link', 'set', 'up1', 'up');
    run('ip', 'address', 'add', '10.1.0.1/24', 'dev', 'up1');
    peer('link', 'set', 'eth0', 'up');
    peer('address', 'add', '10.1.0.2/24', 'dev', 'eth0');
    peer(...'link add vx type vxlan id 4096 dstport 4789 local 10.1.0.2 dev eth0 nolearning'.split(' '));
    peer('link', 'set', 'vx', 'address', '66:00:00:00:00:02', 'up');
    peer('address', 'add', '10.65.1.1/32', 'dev', 'vx');
    peer(...'route add 10.65.0.0/26 via 10.65.0.1 dev vx onlink'.split(' '));
    peer(...'neighbour add 10.65.0.1 dev vx lladdr 66:00:00:00:00:01 nud permanent'.split(' '));
    run('bridge', '-n', 'peer', ...'fdb add 66:00:00:00:00:01 dev vx dst 10.1.0.1 self permanent'.split(' '));
    try {
      start();
      const tunnel = { ...vxlan, local: '10.1.0.1', parent: 'up1' };
      const far = { device: vxlan.name, tunnelAddress: '10.65.1.1', mac: '66:00:00:00:00:02', nodeAddress: '10.1.0.2' };
      loop.setWanted({
        ...wanted,
        tunnels: [tunnel],
        peers: [far],
        routes: routesOf(unicast('10.65.1.0/26', '10.65.1.1')),
      });
      await reached();
      expect(canPing('10.65.1.1')).toBe(true);
      runCommand('ip link delete vxlan4.podwire');
      await reached();
      expect(canPing('10.65.1.1')).toBe(true);
    } finally {
      run('ip', 'netns', 'delete', 'peer');
    }
  });
});

test('after any walk the real kernel is as wanted, and foreign objects are unchanged', async () => {
  const walks = fc.array(
    fc.oneof(
      { arbitrary: commandSteps, weight: 8 },
      { arbitrary: wantedSteps, weight: 3 },
      { arbitrary: restSteps, weight: 3 },
      { arbitrary: fc.constant({ what: 'restart' } as const), weight: 1 },
    ),
    { maxLength: 25 },
  );
  start({ checkIntervalMs: 1000 });
  await fc.assert(
    fc.asyncProperty(walks, async (strides) => {
      await loop.reconciler.stop();
      clearNode();
      for (const command of [...RESTORE, ...FOREIGN]) runCommand(command);
      const listed = () => [run('ip', 'route', 'show', 'proto', '4'), run('ip', '-br', 'link', 'show', 'vxlan.other')];
      const foreign = listed();
      start({ checkIntervalMs: 1000 });
      for (const stride of strides) {
        if (stride.what === 'want') loop.setWanted(stride.wanted);
        else if (stride.what === 'command') attempt(stride.command);
        else if (stride.what === 'rest') await delay(15);
        else {
          const { wanted } = loop.planner;
          await loop.reconciler.stop();
          start({ checkIntervalMs: 1000 });
          loop.setWanted(wanted);
        }
      }
      for (const command of [...RESTORE, ...FOREIGN_CLEARED]) attempt(command);
      loop.setWanted(loop.planner.wanted);
      await reached();
      expect(listed()).toEqual(foreign);
    }),
    { numRuns: 12 },
  );
}, 300_000);
