import { describe, expect, test } from 'vitest';
import { z } from 'zod';

import { absolutePath, flag, listOf, oneOf, rpcAddress, text, wholeNumber } from './setting.js';
import { serverSettingsUsage, serverUsage, settingsUsage } from './usage.js';

/** The value that a form reads from a text, or its error. */
function read(form: z.ZodType, written: string): unknown {
  const result = form.safeParse(written);
  return result.success ? { value: result.data } : result.error.issues.map(({ message }) => message);
}

const HOST_PORT = 'is neither unix:/absolute/path nor host:port';

describe.each<[string, z.ZodType, readonly [string, unknown][], readonly [string, string][]]>([
  [
    'text',
    text,
    [
      ['a', 'a'],
      [' ', ' '],
    ],
    [['', 'is empty']],
  ],
  [
    'absolute path',
    absolutePath,
    [
      ['/', '/'],
      ['/a b/c', '/a b/c'],
    ],
    [
      ['a', 'is not an absolute path'],
      ['../runtime/a', 'is not an absolute path'],
      [' /a', 'is not an absolute path'],
    ],
  ],
  [
    'whole number',
    wholeNumber(-5, 10),
    [
      ['-5', -5],
      ['0', 0],
      ['10', 10],
      ['007', 7],
    ],
    [
      ['-6', 'is not from -5 to 10'],
      ['11', 'is not from -5 to 10'],
      ['9'.repeat(400), 'is not from -5 to 10'],
      ['1.5', 'is not a whole number'],
      ['1e1', 'is not a whole number'],
      ['0x1', 'is not a whole number'],
      ['+1', 'is not a whole number'],
      ['1 ', 'is not a whole number'],
      ['five', 'is not a whole number'],
      ['', 'is not a whole number'],
    ],
  ],
  [
    'one of',
    oneOf(['a', 'b']),
    [
      ['a', 'a'],
      ['b', 'b'],
    ],
    [
      ['c', 'is not one of a, b'],
      ['A', 'is not one of a, b'],
    ],
  ],
  [
    'flag',
    flag,
    [
      ['true', true],
      ['false', false],
    ],
    [
      ['yes', 'is not one of true, false'],
      ['1', 'is not one of true, false'],
      ['TRUE', 'is not one of true, false'],
    ],
  ],
  [
    'address of a service',
    rpcAddress,
    [
      ['unix:/run/podwire/ipam.sock', 'unix:/run/podwire/ipam.sock'],
      ['ipam.podwire.svc:65535', 'ipam.podwire.svc:65535'],
      ['10.0.0.1:0', '10.0.0.1:0'],
      ['[::1]:50051', '[::1]:50051'],
    ],
    [
      ['unix:run/ipam.sock', HOST_PORT],
      ['unix:/', HOST_PORT],
      ['unix:/a b', HOST_PORT],
      ['/run/ipam.sock', HOST_PORT],
      ['ipam', HOST_PORT],
      ['ipam:', HOST_PORT],
      [':80', HOST_PORT],
      ['::1:80', HOST_PORT],
      ['http://ipam:80', HOST_PORT],
      ['ipam:65536', 'has a port above 65535'],
    ],
  ],
])('%s', (_, form, taken, refused) => {
  test.each(taken)('reads %j', (written, value) => {
    expect(read(form, written)).toEqual({ value });
  });

  test.each(refused)('refuses %j', (written, message) => {
    expect(read(form, written)).toContain(message);
  });
});

describe('list', () => {
  test('has its items trimmed and read one by one', () => {
    expect(read(listOf(wholeNumber(0, 9)), '1, 2 ,3')).toEqual({ value: [1, 2, 3] });
  });

  test.each(['1,,2', '1,', ',1', '1;2'])('refuses %j', (written) => {
    expect(read(listOf(wholeNumber(0, 9)), written)).toContain('is not a whole number');
  });

  test('names the error of each item', () => {
    expect(read(listOf(wholeNumber(0, 9)), '1,x,10')).toEqual(['is not a whole number', 'is not from 0 to 9']);
  });
});

const SETTINGS = {
  listen: { variable: 'PODWIRE_X_LISTEN', schema: z.string(), default: 'unix:/run/x.sock', about: 'Where to serve.' },
  pool: {
    variable: 'PODWIRE_X_POOL',
    schema: z.string(),
    default: '',
    about: `Its range, ${'or another '.repeat(20)}.`,
  },
};

test('every setting is listed with its default, where it has one, and its effect', () => {
  const text = settingsUsage(SETTINGS);
  expect(text).toContain('  PODWIRE_X_LISTEN (unix:/run/x.sock)\n      Where to serve.\n');
  expect(text).toContain('  PODWIRE_X_POOL\n      Its range, or another');
  expect(text).not.toContain('OTEL_');
});

test('a process that exports telemetry lists those settings, too', () => {
  const text = serverSettingsUsage(SETTINGS);
  expect(text.startsWith(settingsUsage(SETTINGS))).toBe(true);
  expect(text).toContain('  OTEL_…\n');
});

test('no line is wider than a terminal, and no word is dropped', () => {
  const text = serverUsage('podwire-x', `${'Serves x. It '.repeat(20)}ends.`, SETTINGS);
  expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(110);
  expect(text.match(/another/g)).toHaveLength(20);
  expect(text.replace(/\s+/g, ' ').match(/Serves x\./g)).toHaveLength(20);
  expect(text.endsWith('\n')).toBe(true);
});
