import fc from 'fast-check';
import { expect, test } from 'vitest';

import { Errno } from '../testing/memory-namespace.js';
import { differences } from '../testing/routes-oracle.js';
import {
  FOREIGN,
  FOREIGN_CLEARED,
  handMoves,
  mishaps,
  RESTORE,
  rests,
  wishes,
  type Stride,
} from '../testing/routes-walk.js';
import { Scene } from '../testing/routes.js';

/** By hand, whether the kernel takes it or not. */
function attempt(scene: Scene, command: string): void {
  try {
    scene.byHand(command);
  } catch (error) {
    if (!(error instanceof Errno)) throw error;
  }
}

async function take(scene: Scene, stride: Stride): Promise<void> {
  switch (stride.what) {
    case 'want':
      scene.loop.want(stride.wanted);
      return;
    case 'by hand':
      attempt(scene, stride.command);
      return;
    case 'deafen':
      scene.kernel.silentlyLost = 10;
      return;
    case 'overrun':
      scene.kernel.hold();
      scene.kernel.release({ asOverrun: true });
      return;
    case 'break watches':
      scene.kernel.breakWatches();
      return;
    case 'refuse':
      scene.kernel.failNext(stride.operation, { after: stride.after });
      return;
    case 'restart': {
      const { wanted } = scene.loop.planner;
      await scene.loop.reconciler.stop();
      scene.start().want(wanted);
      return;
    }
    case 'rest':
      await scene.calm();
  }
}

const walks = fc.array(
  fc.oneof(
    { arbitrary: handMoves, weight: 8 },
    { arbitrary: wishes, weight: 3 },
    { arbitrary: rests, weight: 4 },
    { arbitrary: mishaps, weight: 1 },
  ),
  { maxLength: 40 },
);

const others = (scene: Scene) =>
  scene.kernel.node
    .print()
    .filter((line) => / 10\.77\.| metric 3$|vxlan\.other/.test(line))
    .sort();

test('after any walk the kernel is as wanted, and what others made is as it was', async () => {
  await fc.assert(
    fc.asyncProperty(walks, async (strides) => {
      const scene = new Scene();
      for (const command of FOREIGN) scene.byHand(command);
      const foreign = others(scene);
      for (const stride of strides) await take(scene, stride);
      scene.kernel.silentlyLost = 0;
      for (const command of [...RESTORE, ...FOREIGN_CLEARED]) attempt(scene, command);
      const { planner } = scene.loop;
      if (!scene.loop.reconciler.status().wanted) scene.loop.want(planner.wanted);
      await scene.pass(400_000);
      // Faults that nothing ran into would hit the comparison.
      const kernel = scene.kernel;
      while (kernel.unusedFaults > 0) {
        await scene.loop.reconciler.stop();
        scene.start().want(planner.wanted);
        kernel.clearFaults();
        await scene.pass(400_000);
      }
      expect(await differences(kernel, planner.wanted)).toEqual([]);
      expect(others(scene)).toEqual(foreign);
      expect(scene.loop.reconciler.status()).toMatchObject({ state: 'as-wanted', conditions: [] });
      const before = kernel.commands.length;
      await scene.pass(200_000);
      expect(kernel.commands.slice(before)).toEqual([]);
      await scene.loop.reconciler.stop();
    }),
    { numRuns: 300 },
  );
}, 120_000);
