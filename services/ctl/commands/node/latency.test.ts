import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Fakes } from '../../testing/ctl.js';
import { bar } from './trace.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const add = {
  startedAt: '2026-05-04T12:30:00.123Z',
  command: 'ADD',
  pod: { namespace: 'shop', name: 'web-0', uid: 'u-1' },
  containerId: '4f1c9d00',
  network: 'k8s-pod-network',
  interface: 'eth0',
  result: 'success',
  durationMs: 10,
  addresses: ['10.65.0.7'],
  traceId: '0af7651916cd43dd8448eb211c80319c',
  intervals: [
    { name: 'shim', phase: 'shim', startMs: 0, durationMs: 1, depth: 0 },
    { name: 'podwire-ipam Allocate', phase: 'rpc', startMs: 2, durationMs: 6, depth: 0 },
    { name: 'podwire-ipam', phase: 'ipam', startMs: 3, durationMs: 4, depth: 1 },
    { name: 'podwire.store.commit', phase: 'datastore', startMs: 4, durationMs: 3, depth: 2 },
    { name: 'of a later release', phase: 'quantum', startMs: 8, durationMs: 1, depth: 0 },
  ],
};
const failedAdd = {
  ...add,
  startedAt: '2026-05-04T12:31:00.000Z',
  pod: { namespace: 'shop', name: 'db-0', uid: 'u-2' },
  containerId: 'beef0000',
  result: 'POOLS_EXHAUSTED',
  message: 'all pools are full',
  durationMs: 30,
  addresses: [],
  intervals: [],
};
const del = {
  ...add,
  startedAt: '2026-05-04T12:32:00.000Z',
  command: 'DEL',
  durationMs: 4,
  addresses: [],
  intervals: [],
};
const gc = {
  startedAt: '2026-05-04T12:29:00.000Z',
  command: 'GC',
  result: 'success',
  durationMs: 1,
  addresses: [],
  intervals: [],
};

const serve = (commands: object[]) =>
  fakes.servePlugin((line) => (line === 'GET /commands' ? JSON.stringify({ node: 'node-1', commands }) : undefined));

describe('latency', () => {
  test('lists the commands, the phases of successful ADDs, and the slowest ADDs', async () => {
    await serve([del, failedAdd, add, gc]);
    const { exitCode, stdout } = await fakes.podwirectl('latency');
    expect(exitCode).toBe(0);
    for (const line of [
      /^ADD +2 +1 +10\.0 +10\.0 +10\.0 +10\.0$/m,
      /^DEL +1 +0 +4\.00 +4\.00 +4\.00 +4\.00$/m,
      /^shim +10\.0% +1\.00 /m,
      /^plugin +30\.0% +3\.00 /m,
      /^rpc +20\.0% +2\.00 /m,
      /^ipam +10\.0% +1\.00 /m,
      /^datastore +30\.0% +3\.00 /m,
      /^2026-05-04T12:31:00\.000Z +30\.0 +plugin 30\.0 +POOLS_EXHAUSTED +shop\/db-0 +0af7651916cd43dd8448eb211c80319c$/m,
    ])
      expect(stdout).toMatch(line);
    expect(stdout).toMatch(
      /^last failed ADDs:\n.*\n2026-05-04T12:31:00\.000Z +shop\/db-0 +POOLS_EXHAUSTED +all pools are full$/m,
    );
    expect(stdout.indexOf('shop/db-0')).toBeLessThan(stdout.indexOf('shop/web-0'));
    const json = JSON.parse((await fakes.podwirectl('latency', '--slowest', '1', '-o', 'json')).stdout);
    expect(json).toMatchObject({
      node: 'node-1',
      count: 4,
      addMs: { p50: 10, p90: 10, p99: 10 },
      addPhasesMs: { datastore: { p50: 3 } },
      slowestAdds: [{ pod: 'shop/db-0', durationMs: 30, phasesMs: { plugin: 30 } }],
    });
  });

  test('without commands says so', async () => {
    await serve([]);
    expect(await fakes.podwirectl('latency')).toMatchObject({
      exitCode: 0,
      stdout: expect.stringMatching(/commands: none(?![^]*failed ADDs)/),
    });
  });

  test('names the release when the plugin does not know recent commands', async () => {
    await fakes.servePlugin(() => undefined);
    const { exitCode, stderr } = await fakes.podwirectl('latency');
    expect([exitCode, stderr]).toEqual([1, expect.stringContaining('another release')]);
  });
});

describe('trace', () => {
  test.each([[['shop/web-0']], [['web-0', '-n', 'shop']], [['10.65.0.7']], [['--container', '4f1c9d']]])(
    'finds the last ADD and DEL of %j',
    async (words) => {
      await serve([del, failedAdd, add, gc]);
      const { exitCode, stdout } = await fakes.podwirectl('trace', ...words);
      expect(exitCode).toBe(0);
      for (const line of [
        /^ADD of shop\/web-0:$/m,
        /^Phases +plugin 3\.00 ms, datastore 3\.00 ms, rpc 2\.00 ms, shim 1\.00 ms, ipam 1\.00 ms$/m,
        /^Addresses +10\.65\.0\.7$/m,
        /^Trace +0af7651916cd43dd8448eb211c80319c$/m,
        /^ +4\.00 +3\.00 +datastore +·{11}█{9}·{8} {6}podwire\.store\.commit$/m,
        /^DEL of shop\/web-0:$/m,
      ])
        expect(stdout).toMatch(line);
      expect(stdout).not.toContain('db-0');
    },
  );

  test('shows why an ADD failed', async () => {
    await serve([failedAdd]);
    const { stdout } = await fakes.podwirectl('trace', 'shop/db-0');
    expect(stdout).toMatch(/^Result +POOLS_EXHAUSTED: all pools are full$/m);
  });

  test.each(['web-0', 'other/web-0', '10.65.0.8'])('does not find %s', async (subject) => {
    await serve([del, add]);
    const { exitCode, stderr } = await fakes.podwirectl('trace', subject);
    expect([exitCode, stderr]).toEqual([3, expect.stringContaining('begin at 2026-05-04T12:30:00.123Z')]);
  });
});

test('a bar has the same width whatever it shows', () => {
  const ms = fc.double({ min: -10, max: 1000, noNaN: true });
  fc.assert(
    fc.property(ms, ms, ms, (startMs, durationMs, totalMs) => {
      const text = bar({ startMs, durationMs: Math.abs(durationMs) }, Math.abs(totalMs));
      expect(text).toMatch(/^·*█+·*$/);
      expect(text).toHaveLength(28);
    }),
  );
});
