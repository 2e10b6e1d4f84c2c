import { afterEach, describe, expect, test } from 'vitest';

import { NOTHING, Scene } from './reconcile.fixture.js';

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
