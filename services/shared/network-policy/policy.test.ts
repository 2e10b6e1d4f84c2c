import { expect, test } from 'vitest';

import { parseAddress } from '../net/address.js';
import { memberHash } from './policy.js';

test('each part of a member changes its hash, and the hash is the same on every release', () => {
  const address = parseAddress('10.65.0.7')!;
  const member = { address, sequenceNumber: 1_792_000_000_000_000_001n };
  const variants = [
    member,
    { ...member, sequenceNumber: 0n },
    { ...member, address: parseAddress('fd00::7')! },
    { ...member, protocol: 6, port: 80 },
    { ...member, protocol: 17, port: 80 },
    { ...member, protocol: 6, port: 81 },
  ];
  expect(new Set(variants.map(memberHash)).size).toBe(variants.length);
  expect(memberHash(member)).toBe(7_831_348_206_366_543_137n);
});
