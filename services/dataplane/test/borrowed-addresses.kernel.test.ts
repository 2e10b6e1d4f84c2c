import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { Events } from '../pods/events.js';
import type { Kernel, PodSession } from '../pods/kernel.js';
import { PodWiring } from '../pods/pods.js';
import type { WantedNode } from '../routes/wanted.js';
import {
  addPod,
  cleanUp,
  intercept,
  netlinkNodeFixture,
  canPing,
  run,
  snapshot,
  unicast,
  vxlan,
  type InterceptedKernel,
  type NodeKernelFixture,
} from '../testing/kernels.js';
import { BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { routesOf, startLoop, type Loop } from '../testing/routes.js';

/** A borrowed address returns to its owner, and a pod there gets it, while the old route still exists. */

const BORROWED: WantedNode = {
  tunnels: [vxlan],
  routes: routesOf(unicast('10.65.0.7/32', '10.65.1.1'), unicast('fd65::7/128', 'fd00::2', 'up0')),
  peers: [],
  sysctls: [],
  conditions: [],
};

const NOT_BORROWED: WantedNode = { ...BORROWED, routes: new Map() };

let fixture: NodeKernelFixture;
let loop: Loop;
let kernel: InterceptedKernel;
let dataplane: PodWiring;

const dataplaneOf = (of: Kernel) =>
  new PodWiring({ kernel: of, registry: testRegistry(), events: new Events(recordingLog().log) });
const never = () => new AbortController().signal;
const network = podNetwork('a', BY_FAMILY['both families']);
const routes = () =>
  ['-4', '-6'].map((family) =>
    run('ip', family, 'route', 'show', 'proto', '87', 'to', 'root', family === '-4' ? '10.65.0.7' : 'fd65::7'),
  );
const toPod = [
  expect.stringMatching(`^10.65.0.7 dev ${network.hostInterfaceName} scope link`),
  expect.stringMatching(`^fd65::7 dev ${network.hostInterfaceName} metric 1024`),
];

beforeEach(async () => {
  fixture = await netlinkNodeFixture();
  fixture.addParent('up0', '10.0.0.1/24', 'fd00::1/64');
  loop = startLoop({ kernel: fixture.kernel, clock: systemClock });
  kernel = intercept(await NetlinkKernel.open());
  dataplane = dataplaneOf(kernel);
  addPod('a');
  loop.setWanted(BORROWED);
  await expect.poll(() => loop.reconciler.status().state, { timeout: 25_000 }).toBe('as-wanted');
  expect(routes()).toEqual([expect.stringContaining('via 10.65.1.1'), expect.stringContaining('via fd00::2')]);
});

afterEach(async () => {
  await loop.reconciler.stop();
  await kernel.close();
  cleanUp();
  await fixture.destroy();
});

/** A full check of the node's side, which begins after the call. */
async function checked(): Promise<void> {
  const before = loop.reconciler.status().checkedAtMs ?? 0;
  await expect.poll(() => Date.now()).toBeGreaterThan(before);
  loop.reconciler.check();
  await expect.poll(() => loop.reconciler.status().checkedAtMs ?? 0, { timeout: 25_000 }).toBeGreaterThan(before);
}

test('the pod’s routes replace the node’s, which accepts them, before and after it knows of the return', async () => {
  await dataplane.attach(network, never());
  expect(routes()).toEqual(toPod);
  const reasons = () => loop.reconciler.conditions().map(({ reason }) => reason);
  await expect.poll(reasons, { timeout: 25_000 }).toEqual(['RouteTaken', 'RouteTaken']);
  await checked();
  expect(routes()).toEqual(toPod);

  loop.setWanted(NOT_BORROWED);
  await expect.poll(reasons, { timeout: 25_000 }).toEqual([]);
  await checked();
  expect(routes()).toEqual(toPod);
  expect(await dataplane.check(network, never())).toEqual([]);
  expect(canPing('10.65.0.7')).toBe(true);
  expect(loop.reconciler.status().driftCount).toBe(0);
});

test('a concurrent notification that the address is no longer borrowed changes nothing', async () => {
  loop.setWanted(NOT_BORROWED);
  await dataplane.attach(network, never());
  await checked();
  expect(routes()).toEqual(toPod);
  expect(await dataplane.check(network, never())).toEqual([]);
});

/** The dataplane's kernel, which refuses the step at the given distance after the first replacement of a route. */
function refusingAfterReplacement(steps: number): Kernel {
  let isArmed = true;
  const open = async (netns: string): Promise<PodSession> => {
    const session = await kernel.open(netns);
    const apply: PodSession['apply'] = (applied) => {
      const at = applied.findIndex(({ type }) => type === 'route-replace');
      if (isArmed && at >= 0) {
        isArmed = false;
        kernel.refuseAfter(at + steps);
      }
      return session.apply(applied);
    };
    return { ...passed(session), apply };
  };
  return { ...kernel, open };
}

function passed(session: PodSession): PodSession {
  return {
    identity: session.identity,
    observe: (wanted) => session.observe(wanted),
    podLink: (name) => session.podLink(name),
    rules: (table) => session.rules(table),
    orphanRules: () => session.orphanRules(),
    apply: (steps) => session.apply(steps),
    close: () => session.close(),
  };
}

test.each([0, 1])(
  'an attach that fails %i steps after the first replacement leaves the node’s routes',
  async (steps) => {
    // Only the dataplane restores them.
    await loop.reconciler.stop();
    const before = snapshot('a');
    const failing = dataplaneOf(refusingAfterReplacement(steps));
    await expect(failing.attach(network, never())).rejects.toMatchObject({ message: 'refused by the test' });
    expect(kernel.refused).toBe(true);
    expect(kernel.finished.filter(({ type }) => type === 'route-replace')).toHaveLength(2 * steps);
    expect(snapshot('a')).toBe(before);
    await dataplane.attach(network, never());
    expect(routes()).toEqual(toPod);
  },
);
