import { execFileSync } from 'node:child_process';

import { parseMac } from '@podwire/shared/net/mac';
import { expect, test } from 'vitest';

import { tunnelMac } from './tunnel-mac.js';

test.each([
  ['node-1', 4, 'node-1'],
  ['node-1', 6, 'node-1-v6'],
  ['knoten-ü', 4, 'knoten-ü'],
] as const)('of %s for IPv%i: 66 and the first five bytes that sha1sum gives of %j', (name, family, hashed) => {
  const sum = execFileSync('sha1sum', { input: hashed, encoding: 'utf8' });
  const mac = tunnelMac(name, family);
  expect(mac.replaceAll(':', '')).toBe(`66${sum.slice(0, 10)}`);
  expect(parseMac(mac)).toBe(mac);
});
