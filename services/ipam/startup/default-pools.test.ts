import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { formatPrefix } from '@podwire/shared/net/prefix';
import { afterAll, expect, test } from 'vitest';

import { readDefaultPools } from './default-pools.js';

const folder = mkdtempSync(join(tmpdir(), 'pools-'));
const file = join(folder, 'pools.json');
afterAll(() => rmSync(folder, { recursive: true }));

function poolsOf(text: string) {
  writeFileSync(file, text);
  return readDefaultPools({ defaultPool: undefined, defaultPoolsFile: file });
}

test('a file has the pools of both families with their encapsulation', () => {
  const four = { name: 'four', cidr: '10.65.0.0/16', encapsulation: 'vxlan', natOutgoing: true, blockSize: 0 };
  const six = { name: 'six', cidr: 'fd65::/48', blockSize: 120 };
  const pools = poolsOf(JSON.stringify([four, six]));
  expect(pools).toMatchObject([
    { name: 'four', vxlanMode: 'Always', ipipMode: 'Never', natOutgoing: true, blockSizeBits: 26 },
    { name: 'six', vxlanMode: 'Never', natOutgoing: false, blockSizeBits: 120 },
  ]);
  expect(pools.map(({ prefix }) => formatPrefix(prefix))).toEqual(['10.65.0.0/16', 'fd65::/48']);
});

test('without a file the pool of the settings counts', () => {
  expect(readDefaultPools({ defaultPool: undefined, defaultPoolsFile: '' })).toEqual([]);
});

test.each([
  ['no', /cannot be read as JSON/],
  ['{}', /expected array/],
  ['[{"name":"a","cidr":"10.0.0.0/16","nat":true}]', /0: Unrecognized key.*nat/],
  ['[{"name":"a","cidr":"10.0.0.1/16"}]', /pool "a": cidr has host bits/],
  ['[{"name":"a","cidr":"fd00::/48","encapsulation":"ipip"}]', /pool "a": ipipMode/],
  [
    '[{"name":"a","cidr":"10.0.0.0/16"},{"name":"b","cidr":"10.0.8.0/24"}]',
    /pool "b" has the name or range of pool "a"/,
  ],
  ['[{"name":"a","cidr":"10.0.0.0/16"},{"name":"a","cidr":"10.1.0.0/16"}]', /pool "a" has the name or range/],
])('refuses %s', (text, reason) => {
  expect(() => poolsOf(text)).toThrow(reason);
  expect(() => poolsOf(text)).toThrow(/correct the file that PODWIRE_IPAM_DEFAULT_POOLS_FILE names/);
});
