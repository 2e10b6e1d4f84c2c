import fc from 'fast-check';
import { test } from 'vitest';

import { operation } from '../testing/lease-operations.js';
import { COOLDOWN_SECONDS, World } from '../testing/lease-world.js';

test.each([0, COOLDOWN_SECONDS])(
  'property: an address is leased to one node or bound to one attachment, and a late call ends or revives no other (cool-down %i s)',
  (cooldownSeconds) => {
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 60, size: 'max' }), (operations) => {
        const world = new World(cooldownSeconds);
        for (const asked of operations) {
          world.run(asked);
          world.check();
        }
      }),
      { numRuns: 150 },
    );
  },
  60_000,
);
