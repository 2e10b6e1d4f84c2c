import { afterEach, describe, expect, test, vi } from 'vitest';

import { blackhole } from '../testing/kernels.js';
import { NOTHING, routesOf, ReconcilerFixture } from '../testing/routes.js';

let fixture: ReconcilerFixture;

afterEach(() => fixture.loop.reconciler.stop());

const status = () => fixture.loop.reconciler.status();

describe('a round that fails', () => {
  test('is a condition until one succeeds', async () => {
    fixture = new ReconcilerFixture();
    fixture.kernel.failNext('abilities', { errno: 'EPERM' });
    await fixture.setWanted(NOTHING);
    expect(status()).toMatchObject({ state: 'silent', conditions: [{ reason: 'KernelSilent' }] });
    expect(status().conditions[0]?.message).toMatch(/are not reconciled: .*EPERM.*; existing routes stay/);
    expect(fixture.loop.reconciler.conditions()).toEqual(status().conditions);
    await fixture.advance(1000);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
    expect(fixture.kernel.unusedFaults).toBe(0);
  });

  test('by a defect is a condition without the error’s text, which is in the log', async () => {
    fixture = new ReconcilerFixture();
    const { planner } = fixture.loop;
    const update = planner.update.bind(planner);
    planner.update = () => {
      throw new TypeError('secret');
    };
    await fixture.setWanted(NOTHING);
    expect(status()).toMatchObject({ state: 'silent', conditions: [{ reason: 'KernelSilent' }] });
    expect(status().conditions[0]?.message).toMatch(/internal error, see the log/);
    planner.update = update;
    await fixture.advance(60_000);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
  });

  test('by a defect in planning causes a full plan', async () => {
    fixture = new ReconcilerFixture();
    const { planner } = fixture.loop;
    await fixture.setWanted(NOTHING);
    const [update, planned] = [planner.update.bind(planner), vi.fn()];
    planner.update = () => {
      planner.update = (view, change, facts) => {
        planned(change);
        return update(view, change, facts);
      };
      throw new TypeError('secret');
    };
    await fixture.setWanted({ ...NOTHING, routes: routesOf(blackhole('10.65.5.0/26')) });
    await fixture.advance(60_000);
    expect(planned).toHaveBeenCalledExactlyOnceWith({ blocks: 'all', hasOtherChanges: true });
    expect(status()).toMatchObject({ state: 'as-wanted', present: { routes: 1 } });
  });
});

test('a watch that ends while it opens is reopened', async () => {
  fixture = new ReconcilerFixture();
  const watch = fixture.kernel.watch.bind(fixture.kernel);
  fixture.kernel.watch = async (listener) => {
    fixture.kernel.watch = watch;
    const watching = await watch(listener);
    fixture.kernel.breakWatches();
    return watching;
  };
  await fixture.setWanted(NOTHING);
  await fixture.advance(2000);
  expect(fixture.kernel.watches).toBe(1);
});

test('interference with a pod’s routes is passed on also when a full check comes first', async () => {
  fixture = new ReconcilerFixture();
  for (const command of [
    'ip link add podw77 type bridge',
    'ip link set podw77 up',
    'ip route add 10.65.9.9/32 dev podw77 proto 87 scope link',
  ])
    fixture.runCommand(command);
  await fixture.setWanted(NOTHING);
  fixture.pods.splice(0);
  fixture.runCommand('ip route delete 10.65.9.9/32 proto 87');
  fixture.loop.reconciler.check();
  await fixture.waitUntilIdle();
  expect(fixture.pods).toContain('podw77');
});

test('a tunnel kind whose module is loaded later is used without a restart', async () => {
  fixture = new ReconcilerFixture();
  fixture.kernel.supportedTunnels = { hasVxlan: true, hasIpip: false };
  await fixture.setWanted(NOTHING);
  expect(fixture.loop.planner.facts?.hasIpip).toBe(false);
  fixture.kernel.supportedTunnels = { hasVxlan: true, hasIpip: true };
  await fixture.advance(200_000);
  expect(fixture.loop.planner.facts?.hasIpip).toBe(true);
});

describe('that pods may have changed is passed on', () => {
  const podLink = 'ip link add podw77 type bridge';

  test.each([false, true])('when notifications were lost, a full check before or not: %s', async (isCheck) => {
    fixture = new ReconcilerFixture();
    await fixture.setWanted(NOTHING);
    fixture.kernel.hold();
    fixture.runCommand(podLink);
    fixture.kernel.release({ asOverrun: true });
    if (isCheck) fixture.loop.reconciler.check();
    await fixture.waitUntilIdle();
    expect(fixture.pods).toEqual([undefined]);
    await fixture.advance(200_000);
    expect(fixture.pods).toEqual([undefined]);
  });

  test('when the watch was interrupted, but not at the start', async () => {
    fixture = new ReconcilerFixture();
    await fixture.setWanted(NOTHING);
    expect(fixture.pods).toEqual([]);
    fixture.kernel.breakWatches();
    await fixture.advance(2000);
    expect([fixture.kernel.watches, fixture.pods]).toEqual([1, [undefined]]);
  });

  test('also before the first view of the cluster', async () => {
    fixture = new ReconcilerFixture();
    await fixture.waitUntilIdle();
    fixture.runCommand(podLink);
    await fixture.waitUntilIdle();
    expect([fixture.pods, fixture.kernel.observations]).toEqual([['podw77'], 0]);
    await fixture.setWanted(NOTHING);
    expect([fixture.pods, fixture.kernel.watches]).toEqual([['podw77'], 1]);
  });
});

describe('a clock that is set back', () => {
  const MINUTES_MS = 450_000;

  test('delays no full check', async () => {
    fixture = new ReconcilerFixture();
    const sysctls = [{ key: ['net', 'ipv4', 'ip_forward'], value: '1' }];
    await fixture.setWanted({ ...NOTHING, sysctls });
    fixture.clock.setBack(MINUTES_MS);
    fixture.runCommand('sysctl -w net.ipv4.ip_forward=0');
    expect(await fixture.commandsDuring(() => fixture.advance(200_000))).toEqual(['sysctl -w net.ipv4.ip_forward=1']);
  });

  test('delays no retry and no notification', async () => {
    fixture = new ReconcilerFixture();
    fixture.kernel.failNext('route-add', { errno: 'EPERM' });
    const wanted = { ...NOTHING, routes: routesOf(blackhole('10.65.0.0/26')) };
    await fixture.setWanted(wanted);
    expect(status().present?.routes).toBe(0);
    fixture.clock.setBack(MINUTES_MS);
    await fixture.advance(10_000);
    expect(status().present?.routes).toBe(1);
    fixture.runCommand('ip route delete blackhole 10.65.0.0/26 proto 87');
    fixture.clock.setBack(MINUTES_MS);
    await fixture.advance(1000);
    expect(await fixture.commandsDuring(() => fixture.advance(200_000))).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', present: { routes: 1 } });
  });
});
