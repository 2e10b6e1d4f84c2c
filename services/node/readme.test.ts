import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { nodeSettings } from './settings.js';

test('the README lists every setting with its default and its effect', () => {
  const section = readFileSync(join(import.meta.dirname, 'README.md'), 'utf8').split('## Settings\n')[1]!;
  const rows = section.split('\n').filter((line) => line.startsWith('| `'));
  const cells = rows.map((row) =>
    row
      .split(/(?<!\\)\|/)
      .slice(1, 4)
      .map((cell) => cell.trim().replaceAll('`', '').replaceAll('\\', '')),
  );
  const settings = Object.values(nodeSettings("the host's name in lower case"));
  expect(cells).toEqual(settings.map(({ variable, default: usual, about }) => [variable, usual, about]));
});
