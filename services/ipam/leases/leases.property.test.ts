import fc from 'fast-check';
import { test } from 'vitest';

import { operation, type Operation } from '../testing/lease-operations.js';
import { COOLDOWN_SECONDS, World } from '../testing/lease-world.js';

/** Operations that broke the rules once, and are too rare to be found in each run. */
const KNOWN: readonly (readonly Operation[])[] = [
  [
    { type: 'lease', node: 'n3', count: 1 },
    { type: 'bind', which: { among: 'held', index: 0 }, id: 'c5', as: null },
    { type: 'burst', node: 'n2' },
    { type: 'backup' },
    { type: 'allocate', id: 'c1', node: 'n1' },
    { type: 'burst', node: 'n3' },
    { type: 'burst', node: 'n2' },
    { type: 'allocate', id: 'c4', node: 'n2' },
    { type: 'release', id: 'c5' },
    { type: 'allocate', id: 'c5', node: 'n2' },
    { type: 'burst', node: 'n1' },
    { type: 'restore', order: ['n1', 'n2', 'n3'] },
  ],
  [
    { type: 'lease', node: 'n2', count: 1 },
    { type: 'foreign release', node: 'n2', index: 0 },
    { type: 'wait', seconds: 31 },
    { type: 'open', node: 'n2', by: 'boot' },
    { type: 'burst', node: 'n2' },
  ],
];

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
      { numRuns: 150, examples: KNOWN.map((operations) => [[...operations]]) },
    );
  },
  60_000,
);
