import fc from 'fast-check';
import { expect, test } from 'vitest';

import { Errno } from '../testing/memory-namespace.js';
import { differences } from '../testing/routes-oracle.js';
import {
  FOREIGN,
  FOREIGN_CLEARED,
  commandSteps,
  faultSteps,
  RESTORE,
  restSteps,
  wantedSteps,
  type WalkStep,
} from '../testing/routes-walk.js';
import { ReconcilerFixture } from '../testing/routes.js';

/** Runs a command of another program; the kernel may refuse it. */
function attempt(fixture: ReconcilerFixture, command: string): void {
  try {
    fixture.runCommand(command);
  } catch (error) {
    if (!(error instanceof Errno)) throw error;
  }
}

async function take(fixture: ReconcilerFixture, stride: WalkStep): Promise<void> {
  switch (stride.what) {
    case 'want':
      fixture.loop.setWanted(stride.wanted);
      return;
    case 'command':
      attempt(fixture, stride.command);
      return;
    case 'deafen':
      fixture.kernel.lostNotificationCount = 10;
      return;
    case 'overrun':
      fixture.kernel.hold();
      fixture.kernel.release({ asOverrun: true });
      return;
    case 'break watches':
      fixture.kernel.breakWatches();
      return;
    case 'refuse':
      fixture.kernel.failNext(stride.operation, { after: stride.after });
      return;
    case 'restart': {
      const { wanted } = fixture.loop.planner;
      await fixture.loop.reconciler.stop();
      fixture.start().setWanted(wanted);
      return;
    }
    case 'rest':
      await fixture.waitUntilIdle();
  }
}

const walks = fc.array(
  fc.oneof(
    { arbitrary: commandSteps, weight: 8 },
    { arbitrary: wantedSteps, weight: 3 },
    { arbitrary: restSteps, weight: 4 },
    { arbitrary: faultSteps, weight: 1 },
  ),
  { maxLength: 40 },
);

const foreignObjects = (fixture: ReconcilerFixture) =>
  fixture.kernel.node
    .print()
    .filter((line) => / 10\.77\.| metric 3$|vxlan\.other/.test(line))
    .sort();

test('after any walk the kernel is as wanted, and foreign objects are unchanged', async () => {
  await fc.assert(
    fc.asyncProperty(walks, async (strides) => {
      const fixture = new ReconcilerFixture();
      for (const command of FOREIGN) fixture.runCommand(command);
      const foreign = foreignObjects(fixture);
      for (const stride of strides) await take(fixture, stride);
      fixture.kernel.lostNotificationCount = 0;
      for (const command of [...RESTORE, ...FOREIGN_CLEARED]) attempt(fixture, command);
      const { planner } = fixture.loop;
      if (!fixture.loop.reconciler.status().wanted) fixture.loop.setWanted(planner.wanted);
      await fixture.advance(400_000);
      // Unused faults would fail the comparison.
      const kernel = fixture.kernel;
      while (kernel.unusedFaults > 0) {
        await fixture.loop.reconciler.stop();
        fixture.start().setWanted(planner.wanted);
        kernel.clearFaults();
        await fixture.advance(400_000);
      }
      expect(await differences(kernel, planner.wanted)).toEqual([]);
      expect(foreignObjects(fixture)).toEqual(foreign);
      expect(fixture.loop.reconciler.status()).toMatchObject({ state: 'as-wanted', conditions: [] });
      const before = kernel.commands.length;
      await fixture.advance(200_000);
      expect(kernel.commands.slice(before)).toEqual([]);
      await fixture.loop.reconciler.stop();
    }),
    { numRuns: 300 },
  );
}, 120_000);
