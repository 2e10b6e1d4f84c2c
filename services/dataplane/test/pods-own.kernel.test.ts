import { afterEach, beforeEach, expect, test } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import type { RecordStore } from '../records/record-store.js';
import { addPod, cleanUp, canPing, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { address, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';

/** Settings that chains and workloads make in a pod, on the real kernel. */

const TUNED_MAC = '02:00:00:00:00:99';

let kernel: NetlinkKernel;
/** MTU of pods without a requested MTU, in bytes. */
let mtuBytes: number;

const never = () => new AbortController().signal;

/** A service as a start creates it from the records. */
async function start(store: RecordStore = new MemoryRecordStore()): Promise<PodWiring> {
  const registry = testRegistry(store);
  await registry.load();
  return new PodWiring({ kernel, registry, events: new Events(recordingLog().log), mtu: () => mtuBytes });
}

function linkOf(...args: readonly string[]): { mtu: number; mac: string } {
  const [, mtu] = /\bmtu (\d+)/.exec(run('ip', ...args)) ?? [];
  const [, mac = ''] = /link\/ether (\S+)/.exec(run('ip', ...args)) ?? [];
  return { mtu: Number(mtu), mac };
}

const inPod = (pod: string) => linkOf('-n', pod, 'link', 'show', 'eth0');

beforeEach(async () => {
  requireThrowawayNamespace();
  mtuBytes = 1400;
  kernel = await NetlinkKernel.open();
});

afterEach(async () => {
  await kernel.close();
  cleanUp();
});

test('settings of tuning survive checks and restarts, and an unchanged MTU follows the node’s', async () => {
  const store = new MemoryRecordStore();
  const dataplane = await start(store);
  const plain = podNetwork('plain', { mtuBytes: undefined });
  const tuned = podNetwork('tuned', { mtuBytes: undefined, addresses: [address('10.65.0.8')] });
  for (const network of [plain, tuned]) {
    addPod(network.attachment.containerId);
    await dataplane.attach(network, never());
  }
  run('ip', '-n', 'tuned', 'link', 'set', 'eth0', 'mtu', '1380', 'address', TUNED_MAC);
  // The kernel drops permanent neighbours with the MAC address, and the next check restores them.
  const look = async (service: PodWiring) => {
    for (const { attachment } of [plain, tuned]) await service.repairRecorded(attachment, never());
    return { plain: inPod('plain').mtu, tuned: inPod('tuned') };
  };
  expect(await look(dataplane)).toEqual({ plain: 1400, tuned: { mtu: 1380, mac: TUNED_MAC } });
  const restarted = await start(store);
  expect(await look(restarted)).toEqual({ plain: 1400, tuned: { mtu: 1380, mac: TUNED_MAC } });
  mtuBytes = 1450;
  expect(await look(restarted)).toEqual({ plain: 1450, tuned: { mtu: 1380, mac: TUNED_MAC } });
  expect(linkOf('link', 'show', tuned.hostInterfaceName).mtu).toBe(1450);
  mtuBytes = 1300;
  expect(await look(restarted)).toEqual({ plain: 1300, tuned: { mtu: 1300, mac: TUNED_MAC } });
  expect(await restarted.repairRecorded(tuned.attachment, never())).toEqual({ outcome: 'matches', differences: [] });
  expect([canPing('10.65.0.8', 'plain'), canPing('10.65.0.7', 'tuned')]).toEqual([true, true]);
});

test('a MAC address that the pod set is no difference, survives a repair, and is reset by another attach', async () => {
  const dataplane = await start();
  const network = podNetwork('a');
  for (const pod of ['a', 'b']) addPod(pod);
  await dataplane.attach(network, never());
  await dataplane.attach(podNetwork('b', { addresses: [address('10.65.0.8')] }), never());
  run('ip', '-n', 'a', 'link', 'set', 'eth0', 'address', TUNED_MAC);
  // The pod's neighbours are dropped with its MAC address, and the node's entry has the old one, until both are repaired.
  const lost = await dataplane.check(network, never());
  expect(lost.map(({ object }) => object)).toEqual([
    expect.stringMatching(/^pod neighbour 169\.254\.1\.1 /),
    expect.stringMatching(/^host neighbour 10\.65\.0\.7 /),
  ]);
  expect(await dataplane.repair(network, never())).toEqual(lost);
  expect(await dataplane.check(network, never())).toEqual([]);
  expect([inPod('a').mac, canPing('10.65.0.7', 'b'), canPing('10.65.0.8', 'a')]).toEqual([TUNED_MAC, true, true]);
  await dataplane.attach(network, never());
  expect(inPod('a').mac).toBe(network.mac);
  expect(await dataplane.check(network, never())).toEqual([]);
});

test('the workload’s own rules stay, precede rules of a second interface, and are no difference', async () => {
  const dataplane = await start();
  addPod('a');
  const first = podNetwork('a');
  const attachment = { ...first.attachment, interfaceName: 'net1' };
  const second = podNetwork('a', { attachment, hostInterfaceName: 'podwsecond', addresses: [address('10.65.0.8')] });
  addPod('b');
  const other = podNetwork('b', { addresses: [address('10.65.0.9')] });
  for (const network of [first, second, other]) await dataplane.attach(network, never());
  const own = ['from', '10.65.0.8', 'lookup', '100', 'priority', '1000'];
  run('ip', '-n', 'a', 'rule', 'add', ...own);
  run('ip', '-n', 'a', 'route', 'add', 'blackhole', 'default', 'table', '100');
  expect([canPing('10.65.0.7', 'b'), canPing('10.65.0.8', 'b')]).toEqual([true, false]);
  for (const network of [first, second]) expect(await dataplane.check(network, never())).toEqual([]);
  run('ip', '-n', 'a', 'rule', 'delete', ...own);
  expect(canPing('10.65.0.8', 'b')).toBe(true);
  run('ip', '-n', 'a', 'rule', 'add', ...own);
  const { attachment: key, hostInterfaceName } = second;
  await dataplane.detach({ attachment: key, hostInterfaceName }, never());
  expect(
    run('ip', '-n', 'a', 'rule')
      .split('\n')
      .filter((line) => line.includes('10.65.0.8')),
  ).toEqual([expect.stringContaining('lookup 100')]);
});
