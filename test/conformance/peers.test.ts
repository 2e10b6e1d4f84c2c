import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { judgePeer, PEERS } from './peers.js';
import { cellsOf } from './report/table.js';
import { reasonsOf } from './testing/sound-plugin.js';

/** README's table lists the failures of Debian's containernetworking-plugins, and no other failures. */

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

test.each(PEERS)('%s has the results of the README', { timeout: 1_800_000 }, async (name) => {
  const entry = await judgePeer(name, process.pid);
  expect(cellsOf(entry), reasonsOf(entry.verdicts)).toEqual(rows.find(([first]) => first === name));
});
