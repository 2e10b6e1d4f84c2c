import { ListPoolsResponse, PoolServiceService, PoolState } from '@podwire/proto/podwire/ipam/v1/pool';
import { describe, expect, test } from 'vitest';

import { ContractJson, renderData } from './data.js';
import { render } from './render.js';
import type { Report } from './report.js';
import { age, count, lengthOfTime, moment, percent, podOf, wordOf } from './words.js';

const report: Report = {
  sections: [
    {
      kind: 'table',
      title: 'pools',
      columns: ['NAME', { right: 'IN USE' }, 'STATE'],
      rows: [
        ['a', '7', 'active'],
        ['second', '12345678', ''],
      ],
      none: 'none',
    },
    {
      kind: 'fields',
      fields: [
        ['Name', 'a'],
        ['Pod', ''],
        ['Interface', 'eth0'],
      ],
    },
    { kind: 'sentence', text: 'Done.' },
  ],
  hints: ['look there'],
  data: () => ({ name: 'a', cidrs: ['10.65.0.0/16'], at: '2026-05-04T12:30:00Z', note: 'yes: "no"', nothing: null }),
};

test('sentences that follow each other are lines', () => {
  const sentences = ['ippool/a created', 'ippool/b unchanged'].map((text) => ({ kind: 'sentence', text }) as const);
  const { stdout } = render(
    { sections: sentences, data: () => null },
    { format: 'table', hasHeadings: true, isColoured: false },
  );
  expect(stdout).toBe('ippool/a created\nippool/b unchanged\n');
});

test('a text ends with a line feed', () => {
  const options = { format: 'table', hasHeadings: true, isColoured: false } as const;
  const printed = ['a\nb', 'a\nb\n'].map(
    (text) => render({ sections: [{ kind: 'text', text }], data: () => null }, options).stdout,
  );
  expect(printed).toEqual(['a\nb\n', 'a\nb\n']);
});

test('a table is aligned, with numbers to the right and a dash for an empty cell; fields without a value are omitted; hints go to stderr', () => {
  expect(render(report, { format: 'table', hasHeadings: true, isColoured: false })).toEqual({
    stdout: [
      'pools:',
      'NAME      IN USE  STATE',
      'a              7  active',
      'second  12345678  -',
      '',
      'Name       a',
      'Interface  eth0',
      '',
      'Done.',
      '',
    ].join('\n'),
    stderr: 'hint: look there\n',
  });
});

test('without headings a table has its rows alone', () => {
  const { stdout } = render(report, { format: 'table', hasHeadings: false, isColoured: false });
  expect(stdout.split('\n').slice(0, 3)).toEqual(['pools:', 'a              7  active', 'second  12345678  -']);
});

test('json and yaml are the data, without hints', () => {
  const json = render(report, { format: 'json', hasHeadings: true, isColoured: false, renderData });
  expect(JSON.parse(json.stdout)).toEqual(report.data());
  expect(json.stderr).toBe('');
  expect(render(report, { format: 'yaml', hasHeadings: true, isColoured: false, renderData }).stdout).toBe(
    [
      'name: a',
      'cidrs:',
      '  - 10.65.0.0/16',
      'at: "2026-05-04T12:30:00Z"',
      `note: 'yes: "no"'`,
      'nothing: null',
      '',
    ].join('\n'),
  );
});

test('an empty table prints its text, and control characters are replaced', () => {
  const empty: Report = {
    sections: [
      { kind: 'table', columns: ['A'], rows: [], none: 'There is none.' },
      { kind: 'fields', fields: [['Pod', 'a\u001b[2J\nb']] },
    ],
    data: () => null,
  };
  expect(render(empty, { format: 'table', hasHeadings: true, isColoured: false }).stdout).toBe(
    'There is none.\n\nPod  a\uFFFD[2J b\n',
  );
});

test('messages are converted to protobuf’s JSON form, with every field', () => {
  const answer = ListPoolsResponse.fromPartial({
    pools: [
      { name: 'a', utilization: { allocated: 2n ** 63n }, createTime: new Date(0), state: PoolState.POOL_STATE_ACTIVE },
    ],
  });
  expect(new ContractJson().of(PoolServiceService.listPools, answer)).toMatchObject({
    pools: [
      {
        name: 'a',
        disabled: false,
        utilization: { allocated: '9223372036854775808' },
        createTime: '1970-01-01T00:00:00Z',
        state: 'POOL_STATE_ACTIVE',
        allowedUses: [],
      },
    ],
    nextPageToken: '',
  });
});

describe('words', () => {
  test.each([
    [0, '0s'],
    [119_999, '119s'],
    [120_000, '2m'],
    [7_199_999, '119m'],
    [7_200_000, '2h'],
    [172_800_000, '2d'],
    [-5, '0s'],
  ])('%d ms last %s', (durationMs, text) => {
    expect(lengthOfTime(durationMs)).toBe(text);
  });

  test('of constants, percentages, numbers, moments and pods', () => {
    expect(wordOf('POOL_STATE_NOT_ALLOCATABLE', 'POOL_STATE_')).toBe('not-allocatable');
    expect(wordOf('POOL_STATE_UNSPECIFIED', 'POOL_STATE_')).toBe('');
    expect(wordOf(undefined, 'POOL_STATE_')).toBe('unknown');
    expect([percent(1, 3), percent(1n, '65536'), percent(0, 0), percent(0, 8)]).toEqual([
      '33.3%',
      '<0.1%',
      '-',
      '0.0%',
    ]);
    expect([count('65536'), count('1208925819614629174706176')]).toEqual(['65536', '1.2e+24']);
    expect([moment(new Date(1500)), moment(undefined), age(undefined, 0)]).toEqual(['1970-01-01T00:00:01Z', '', '']);
    expect(age(new Date(0), 5000)).toBe('5s');
    expect([podOf({ namespace: 'a', pod: 'b' }), podOf({ pod: 'b' }), podOf({})]).toEqual(['a/b', '?/b', '']);
  });
});
