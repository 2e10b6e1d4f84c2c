import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { judgePeer, PEERS } from './peers.js';
import { cellsOf } from './report/table.js';
import { reasonsOf } from './testing/sound-plugin.js';

/** README's table is what Debian's containernetworking-plugins come to: what they fail, and nothing else. */

const README = readFileSync(join(import.meta.dirname, 'README.md'), 'utf8');

const rows = README.split('\n').flatMap((line) =>
  line.startsWith('| ')
    ? [
        line
          .slice(2, -2)
          .split(' | ')
          .map((cell) => cell.trim()),
      ]
    : [],
);

test.each(PEERS)('%s comes to what README says', { timeout: 1_800_000 }, async (name) => {
  const entry = await judgePeer(name, process.pid);
  expect(cellsOf(entry), reasonsOf(entry.verdicts)).toEqual(rows.find(([first]) => first === name));
});
