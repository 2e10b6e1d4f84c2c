import { describe, expect, test } from 'vitest';

import { interfacePatterns, portRange } from './config.js';

describe('interfaces', () => {
  test.each([
    ['', []],
    ['eth0', ['eth0']],
    ['en*, eth1 ,*', ['en*', 'eth1', '*']],
    ['eth123456789012*', ['eth123456789012*']],
  ])('%j are accepted', (text, patterns) => {
    expect(interfacePatterns.parse(text)).toEqual(patterns);
  });

  test.each(['-1', '-i', 'e*0', '**', 'a b', 'a,,b', 'eth0/1', 'all', 'a234567890123456', 'eth0,'])(
    '%j are refused',
    (text) => {
      expect(interfacePatterns.safeParse(text).success).toBe(false);
    },
  );
});

describe('ports', () => {
  test.each([
    ['', undefined],
    ['1-65535', { first: 1, last: 65_535 }],
    ['7-7', { first: 7, last: 7 }],
  ])('%j are accepted', (text, range) => {
    expect(portRange.parse(text)).toEqual(range);
  });

  test.each(['0-7', '8-7', '1-65536', '1', '1-', '-1', '1-2-3', 'a-b', ' 1-2'])('%j are refused', (text) => {
    expect(portRange.safeParse(text).success).toBe(false);
  });
});
