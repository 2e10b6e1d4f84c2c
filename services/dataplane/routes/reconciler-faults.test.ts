import { afterEach, describe, expect, test, vi } from 'vitest';

import { blackhole } from '../testing/kernels.js';
import { NOTHING, routesOf, Scene } from '../testing/routes.js';

let scene: Scene;

afterEach(() => scene.loop.reconciler.stop());

const status = () => scene.loop.reconciler.status();

describe('a turn that fails', () => {
  test('is told of from the first on, until one succeeds', async () => {
    scene = new Scene();
    scene.kernel.failNext('abilities', { errno: 'EPERM' });
    await scene.want(NOTHING);
    expect(status()).toMatchObject({ state: 'silent', conditions: [{ reason: 'KernelSilent' }] });
    expect(status().conditions[0]?.message).toMatch(/are not looked after \(.*EPERM.*\): what is there stays/);
    expect(scene.loop.reconciler.conditions()).toEqual(status().conditions);
    await scene.pass(1000);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
    expect(scene.kernel.unusedFaults).toBe(0);
  });

  test('by a defect is told of without its text, which is in the log', async () => {
    scene = new Scene();
    const { planner } = scene.loop;
    const update = planner.update.bind(planner);
    planner.update = () => {
      throw new TypeError('secret');
    };
    await scene.want(NOTHING);
    expect(status()).toMatchObject({ state: 'silent', conditions: [{ reason: 'KernelSilent' }] });
    expect(status().conditions[0]?.message).toMatch(/internal error: see the log/);
    planner.update = update;
    await scene.pass(60_000);
    expect(status()).toMatchObject({ state: 'as-wanted', conditions: [] });
  });

  test('by a defect in the plan of a change has it planned again, with all that there is', async () => {
    scene = new Scene();
    const { planner } = scene.loop;
    await scene.want(NOTHING);
    const [update, planned] = [planner.update.bind(planner), vi.fn()];
    planner.update = () => {
      planner.update = (view, change, facts) => {
        planned(change);
        return update(view, change, facts);
      };
      throw new TypeError('secret');
    };
    await scene.want({ ...NOTHING, routes: routesOf(blackhole('10.65.5.0/26')) });
    await scene.pass(60_000);
    expect(planned).toHaveBeenCalledExactlyOnceWith({ blocks: 'all', others: true });
    expect(status()).toMatchObject({ state: 'as-wanted', present: { routes: 1 } });
  });
});

test('a watch that ends before it is known to be there is opened again', async () => {
  scene = new Scene();
  const watch = scene.kernel.watch.bind(scene.kernel);
  scene.kernel.watch = async (listener) => {
    scene.kernel.watch = watch;
    const watching = await watch(listener);
    scene.kernel.breakWatches();
    return watching;
  };
  await scene.want(NOTHING);
  await scene.pass(2000);
  expect(scene.kernel.watches).toBe(1);
});

test('what others did to a pod’s routes is passed on also where a full check comes first', async () => {
  scene = new Scene();
  for (const command of [
    'ip link add podw77 type bridge',
    'ip link set podw77 up',
    'ip route add 10.65.9.9/32 dev podw77 proto 87 scope link',
  ])
    scene.byHand(command);
  await scene.want(NOTHING);
  scene.pods.splice(0);
  scene.byHand('ip route delete 10.65.9.9/32 proto 87');
  scene.loop.reconciler.check();
  await scene.calm();
  expect(scene.pods).toContain('podw77');
});

test('a kind of tunnel that the kernel comes to know is used without a restart', async () => {
  scene = new Scene();
  scene.kernel.abilitiesGiven = { hasVxlan: true, hasIpip: false };
  await scene.want(NOTHING);
  expect(scene.loop.planner.facts?.hasIpip).toBe(false);
  scene.kernel.abilitiesGiven = { hasVxlan: true, hasIpip: true };
  await scene.pass(200_000);
  expect(scene.loop.planner.facts?.hasIpip).toBe(true);
});

describe('that pods may be others than they were is passed on', () => {
  const podLink = 'ip link add podw77 type bridge';

  test.each([false, true])('when announcements were lost, a full check before or not: %s', async (isCheck) => {
    scene = new Scene();
    await scene.want(NOTHING);
    scene.kernel.hold();
    scene.byHand(podLink);
    scene.kernel.release({ asOverrun: true });
    if (isCheck) scene.loop.reconciler.check();
    await scene.calm();
    expect(scene.pods).toEqual([undefined]);
    await scene.pass(200_000);
    expect(scene.pods).toEqual([undefined]);
  });

  test('when there were none for a while, but not at the start', async () => {
    scene = new Scene();
    await scene.want(NOTHING);
    expect(scene.pods).toEqual([]);
    scene.kernel.breakWatches();
    await scene.pass(2000);
    expect([scene.kernel.watches, scene.pods]).toEqual([1, [undefined]]);
  });

  test('also as long as it is not known what is wanted between nodes', async () => {
    scene = new Scene();
    await scene.calm();
    scene.byHand(podLink);
    await scene.calm();
    expect([scene.pods, scene.kernel.observations]).toEqual([['podw77'], 0]);
    await scene.want(NOTHING);
    expect([scene.pods, scene.kernel.watches]).toEqual([['podw77'], 1]);
  });
});

describe('a clock that is set back', () => {
  const MINUTES_MS = 450_000;

  test('puts off no full check', async () => {
    scene = new Scene();
    const sysctls = [{ key: ['net', 'ipv4', 'ip_forward'], value: '1' }];
    await scene.want({ ...NOTHING, sysctls });
    scene.clock.setBack(MINUTES_MS);
    scene.byHand('sysctl -w net.ipv4.ip_forward=0');
    expect(await scene.commandsDuring(() => scene.pass(200_000))).toEqual(['sysctl -w net.ipv4.ip_forward=1']);
  });

  test('puts off nothing that was refused, or announced a moment before', async () => {
    scene = new Scene();
    scene.kernel.failNext('route-add', { errno: 'EPERM' });
    const wanted = { ...NOTHING, routes: routesOf(blackhole('10.65.0.0/26')) };
    await scene.want(wanted);
    expect(status().present?.routes).toBe(0);
    scene.clock.setBack(MINUTES_MS);
    await scene.pass(10_000);
    expect(status().present?.routes).toBe(1);
    scene.byHand('ip route delete blackhole 10.65.0.0/26 proto 87');
    scene.clock.setBack(MINUTES_MS);
    await scene.pass(1000);
    expect(await scene.commandsDuring(() => scene.pass(200_000))).toEqual([]);
    expect(status()).toMatchObject({ state: 'as-wanted', present: { routes: 1 } });
  });
});
