import { describe, expect, test } from 'vitest';

import type { Demand } from '../blocks/demand.js';
import type { Pool } from '../records/pool.js';
import { TestView } from '../testing/test-view.js';
import { failureOf, host, NOW_MS, poolRecord } from '../testing/records.js';
import { checkRequestedPools, evaluatePools, servingPools } from './selection.js';

const demand = (rest: Partial<Demand> = {}): Demand => ({
  family: 4,
  use: 'Workload',
  owner: host('n1'),
  nodeLabels: { zone: 'a', disk: 'ssd' },
  namespaceLabels: { team: 'blue' },
  pools: [],
  maxBlocksCount: 0,
  seed: 'n1',
  nowMs: NOW_MS,
  ...rest,
});

const names = (view: TestView, rest: Partial<Demand> = {}) => servingPools(view, demand(rest)).map(({ name }) => name);
const reason = (rest: Partial<Pool>, asked: Partial<Demand> = {}) =>
  evaluatePools(new TestView([poolRecord('p', '10.0.0.0/24', rest)]), demand(asked))[0]?.skipReason;

describe('selectors', () => {
  test.each<[string, string, boolean]>([
    ['', '', true],
    ['all()', 'all()', true],
    ['zone == "a"', '', true],
    ['zone == "b"', '', false],
    ['', 'team == "blue"', true],
    ['', 'team == "red"', false],
    ['zone in {"a", "b"} && has(disk)', 'team starts with "b"', true],
    ['zone == "a"', 'team != "blue"', false],
    ['zone == "b"', 'team == "blue"', false],
    ['!has(gpu)', '!has(tier)', true],
  ])('node "%s" and namespace "%s": %s', (nodeSelector, namespaceSelector, expected) => {
    expect(reason({ nodeSelector, namespaceSelector }) === undefined).toBe(expected);
  });

  test('of namespaces match no labels without a namespace', () => {
    expect(reason({ namespaceSelector: 'has(team)' }, { namespaceLabels: {} })).toContain('which has no labels');
    expect(reason({ namespaceSelector: '!has(team)' }, { namespaceLabels: {} })).toBeUndefined();
  });

  test('of namespaces without a value exclude nothing, except unreadable ones', () => {
    const open = { namespaceLabels: {}, isAnyNamespace: true };
    expect(reason({ namespaceSelector: 'has(team)' }, open)).toBeUndefined();
    expect(reason({ nodeSelector: 'zone == "b"', namespaceSelector: 'has(team)' }, open)).toContain('nodeSelector');
    expect(reason({ namespaceSelector: '&& x' }, open)).toContain('cannot be read');
  });

  test('that are unreadable exclude their own pool, with the position, and no other', () => {
    const view = new TestView([
      poolRecord('a', '10.0.0.0/24', { nodeSelector: 'zone == ' }),
      poolRecord('b', '10.1.0.0/24', { namespaceSelector: '&& x' }),
      poolRecord('c', '10.2.0.0/24'),
    ]);
    expect(names(view)).toEqual(['c']);
    const [first, second] = evaluatePools(view, demand()).map(({ skipReason }) => skipReason);
    expect(first).toMatch(/^its nodeSelector "zone == " cannot be read: at character 9: /);
    expect(second).toMatch(/^its namespaceSelector "&& x" cannot be read: at character 1: /);
  });

  test('choose between two pools', () => {
    const view = new TestView([
      poolRecord('blue', '10.0.0.0/24', { namespaceSelector: 'team == "blue"' }),
      poolRecord('red', '10.1.0.0/24', { namespaceSelector: 'team == "red"' }),
    ]);
    expect(names(view)).toEqual(['blue']);
    expect(names(view, { namespaceLabels: { team: 'red' } })).toEqual(['red']);
  });
});

describe('requested pools', () => {
  const view = new TestView([
    poolRecord('a', '10.0.0.0/24', { nodeSelector: 'zone == "x"' }),
    poolRecord('b', '10.1.0.0/24', { assignmentMode: 'Manual', namespaceSelector: 'no selector' }),
    poolRecord('c', '10.2.0.0/24'),
    poolRecord('six', 'fd00::/64'),
    poolRecord('t', '10.3.0.0/24', { allowedUses: ['Tunnel'] }),
    poolRecord('off', '10.4.0.0/24', { disabled: true }),
  ]);

  test('serve regardless of selectors, by name or CIDR, in the requested order, each once', () => {
    expect(names(view, { pools: ['10.1.0.0/24', 'a', 'b'] })).toEqual(['b', 'a']);
  });

  test('have to allow the use', () => {
    const [judged] = evaluatePools(view, demand({ pools: ['t'] }));
    expect(judged?.skipReason).toBe('not for containers: its allowedUses are Tunnel');
    expect(names(view, { pools: ['t'], use: 'Tunnel' })).toEqual(['t']);
  });

  test('of the other family leave this one to selectors', () => {
    expect(names(view, { pools: ['six'] })).toEqual(['c']);
    expect(names(view, { pools: ['six'], family: 6 })).toEqual(['six']);
  });

  test('that do not exist, or are of an unrequested family, are all named', () => {
    const failure = failureOf(() =>
      checkRequestedPools(view, { pools: ['nope', 'c', '10.9.0.0/24', 'six'], families: [4] }),
    );
    expect(failure.code).toBe('INVALID_REQUEST');
    expect(failure.violations.map(({ field, reason: why }) => `${field} ${why}`)).toEqual([
      'pools[0] is "nope", but there is no such pool; list the pools for their names',
      'pools[2] is "10.9.0.0/24", but there is no such pool; list the pools for their names',
      'pools[3] is pool "six" fd00::/64, but no IPv6 address is requested',
    ]);
  });

  test('that are out of use are refused by name', () => {
    expect(failureOf(() => checkRequestedPools(view, { pools: ['c', '10.4.0.0/24'], families: [4] }))).toMatchObject({
      code: 'NO_POOL_SERVES',
      message: 'pool "off" was requested and is disabled; enable it, or request another',
    });
  });
});

test.each<[string, Partial<Pool>, string]>([
  ['disabled', { disabled: true }, 'disabled'],
  ['being deleted', { deletionTimeMs: NOW_MS }, 'being deleted'],
  ['kept out of use', { notAllocatable: 'CIDROverlap' }, 'not allocatable: CIDROverlap'],
  ['manual', { assignmentMode: 'Manual' }, 'its assignmentMode is Manual, so it serves only requests that name it'],
  ['without uses', { allowedUses: [] }, 'not for containers: its allowedUses are empty'],
])('a pool that is %s is skipped', (_, rest, expected) => {
  expect(reason(rest)).toBe(expected);
});
