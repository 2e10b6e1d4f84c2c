import { readFileSync } from 'node:fs';

import { status } from '@grpc/grpc-js';
import { describe, expect, test } from 'vitest';

import { FAILURE_CODES, isFailureCode } from './codes.js';

const entries = Object.entries(FAILURE_CODES);

const README = readFileSync(new URL('README.md', import.meta.url), 'utf8');

/** Rows of a table of the README, by its first heading, as cells without their marks. */
function rows(heading: string): string[][] {
  const section = README.split('\n## ').find((text) => text.startsWith(heading)) ?? '';
  const lines = section.split('\n').filter((line) => line.startsWith('|'));
  return lines.slice(2).map((line) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim().replaceAll('`', '')),
  );
}

describe('registry', () => {
  test.each(entries)('%s is complete', (code, { status: grpc, cni, about }) => {
    expect(code).toMatch(/^[A-Z]+(_[A-Z]+)*$/);
    expect(status[grpc]).toBeTypeOf('number');
    expect(grpc).not.toBe('OK');
    expect(cni).toBeGreaterThan(0);
    expect(Number.isInteger(cni)).toBe(true);
    expect(about).toMatch(/^[A-Z].*\.$/);
  });

  test('all codes differ in their meaning', () => {
    expect(new Set(entries.map(([, { about }]) => about)).size).toBe(entries.length);
  });

  test('has exactly its own names', () => {
    expect(entries.every(([code]) => isFailureCode(code))).toBe(true);
    expect(['', 'NO_SUCH', 'internal', 'toString', '__proto__'].filter(isFailureCode)).toEqual([]);
  });
});

describe('codes of the CNI specification', () => {
  // The failures that map to codes reserved by the specification (1.1.0, section 2 "Error"); all other failures have codes of Podwire's own.
  test.each([
    [1, 'incompatible CNI version', ['INCOMPATIBLE_CNI_VERSION']],
    [2, 'unsupported field', []],
    [3, 'container unknown: no DEL is needed', []],
    [4, 'invalid environment variables', ['INVALID_ENVIRONMENT', 'INVALID_NETNS']],
    [5, 'I/O failure', []],
    [6, 'failed to decode content', ['CONFIG_NOT_JSON']],
    [7, 'invalid network config', ['INVALID_CONFIG', 'INVALID_REQUEST']],
    [
      11,
      'try again later',
      [
        'BIRD_UNREACHABLE',
        'CANCELLED',
        'CONFLICT',
        'DEADLINE_EXCEEDED',
        'DELEGATE_UNAVAILABLE',
        'HOST_PORT_TAKEN',
        'NO_POOL_SERVES',
        'POOLS_EXHAUSTED',
        'SESSION_SUPERSEDED',
        'STORE_FULL',
        'STORE_LOCKED',
        'STORE_RESTORED',
        'STORE_UNAVAILABLE',
        'TOO_MANY_REQUESTS',
        'TOO_MANY_STREAMS',
        'UNREACHABLE',
      ],
    ],
  ])('%i (%s) is used by %j alone', (cni, _, failures) => {
    expect(
      entries
        .filter(([, entry]) => entry.cni === cni)
        .map(([code]) => code)
        .sort(),
    ).toEqual(failures);
  });

  test('no other is used below 100', () => {
    const reserved = entries.map(([, { cni }]) => cni).filter((cni) => cni < 100);
    expect(new Set(reserved)).toEqual(new Set([1, 4, 6, 7, 11, 50, 51]));
  });

  test('retryable failures are marked as such', () => {
    const codes = entries.filter(([, { retryable }]) => retryable).map(([, { cni }]) => cni);
    expect(new Set(codes)).toEqual(new Set([11, 50, 51]));
  });
});

describe('README.md', () => {
  test('lists every code like the registry, in its order', () => {
    const expected = entries.map(([code, { status: grpc, cni, retryable, about }]) => [
      code,
      grpc,
      retryable ? `${cni} (retry)` : String(cni),
      about,
    ]);
    expect(rows('Codes')).toEqual(expected);
  });
});
