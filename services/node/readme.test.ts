import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { nodeSettings } from './settings.js';

test('the guide names every setting of podwire-node, and no other', () => {
  const guide = readFileSync(join(import.meta.dirname, 'README.md'), 'utf8');
  const section = guide.split('## Configuration\n')[1]!.split('\n## ')[0]!;
  const named = [...section.matchAll(/`(PODWIRE_\w+)`/g)].map(([, variable]) => variable!);
  const settings = Object.values(nodeSettings("the host's name in lower case"));
  expect(named.toSorted()).toEqual(settings.map(({ variable }) => variable).toSorted());
});
