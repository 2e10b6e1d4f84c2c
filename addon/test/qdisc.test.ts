import { expect, it } from 'vitest';

import type { Namespace, TokenBucket } from '../lib/index.js';
import { codes, link0, makePod, open, run, vethPair } from './ip.js';

const HANDLE = 0x50_57;
const NANOSECONDS_PER_TICK = 64;

const link = { name: link0 };

const bucket = (rateBytesPerSecond: number, burstBytes: number, limitBytes: number): TokenBucket => ({
  rateBytesPerSecond,
  burstBytes,
  limitBytes,
});

/** A namespace with a veth pair. */
async function withLink(): Promise<{ name: string; inside: Namespace }> {
  const { name, path } = makePod();
  const inside = await open(path);
  expect(codes(await inside.batch([vethPair(link0, inside)]))).toEqual(['ok']);
  return { name, inside };
}

/** The root qdisc as `tc` shows it. */
function shown(pod: string): Record<string, unknown> | undefined {
  return JSON.parse(run('tc', '-n', pod, '-j', 'qdisc', 'show', 'dev', link0))[0];
}

async function rootQdisc(inside: Namespace) {
  const [outcome] = await inside.batch([{ type: 'qdisc.get', link }]);
  return outcome?.ok ? outcome.qdisc : outcome?.error.code;
}

async function rootKind(inside: Namespace) {
  const [outcome] = await inside.batch([{ type: 'link.get', link }]);
  return outcome?.ok ? outcome.link?.rootQdisc : undefined;
}

const replace = (tbf: TokenBucket, handle = HANDLE) => ({ type: 'qdisc.replace', link, handle, tbf }) as const;

it.each([
  ['a low rate', bucket(125, 1514, 1520)],
  ['10 Mbit/s', bucket(1_250_000, 62_500, 93_750)],
  ['a rate that needs 64 bits', bucket(5_000_000_000, 250_000_000, 375_000_000)],
  ['the highest rate and the largest bucket', bucket(125e12, 2 ** 32 - 1, 2 ** 32 - 1)],
])('sets the root qdisc for %s as tc does, and reads it', async (_, tbf) => {
  const { name, inside } = await withLink();
  expect(codes(await inside.sequence([replace(tbf)]))).toEqual(['ok']);
  const { rateBytesPerSecond, burstBytes, limitBytes } = tbf;
  const options = { rate: rateBytesPerSecond, lat: expect.any(Number) };
  expect(shown(name)).toMatchObject({ kind: 'tbf', handle: '5057:', root: true, options });
  const ticks = ((burstBytes / rateBytesPerSecond) * 1e9) / NANOSECONDS_PER_TICK;
  const found = await rootQdisc(inside);
  expect(found).toEqual({
    linkIndex: expect.any(Number),
    handle: HANDLE,
    kind: 'tbf',
    tbf: { rateBytesPerSecond, limitBytes, bucketTicks: expect.any(Number) },
  });
  expect(Math.abs((typeof found === 'object' ? found.tbf!.bucketTicks : 0) - ticks)).toBeLessThanOrEqual(1);
  expect(await rootKind(inside)).toBe('tbf');
});

it('reports no bucket with a peak rate, which limits packets further', async () => {
  const { name, inside } = await withLink();
  expect(codes(await inside.sequence([replace(bucket(1_250_000, 62_500, 93_750))]))).toEqual(['ok']);
  const limits = ['rate', '10mbit', 'burst', '62500', 'limit', '93750', 'peakrate', '11mbit', 'mtu', '2000'];
  run('tc', '-n', name, 'qdisc', 'change', 'dev', link0, 'root', 'handle', '5057:', 'tbf', ...limits);
  expect(await rootQdisc(inside)).toMatchObject({ handle: HANDLE, kind: 'tbf', tbf: null });
});

it('reports the time of a slow bucket modulo 2^32', async () => {
  const { inside } = await withLink();
  await inside.batch([replace(bucket(1000, 1_000_000, 2_000_000))]);
  expect(await rootQdisc(inside)).toMatchObject({
    tbf: { bucketTicks: ((1000 * 1e9) / NANOSECONDS_PER_TICK) % 2 ** 32 },
  });
});

it('changes parameters in place, replaces qdiscs of other kinds, and deletes', async () => {
  const { name, inside } = await withLink();
  expect(codes(await inside.batch([{ type: 'qdisc.delete', link }]))).toEqual(['ENOENT']);
  expect(await rootQdisc(inside)).toBeUndefined();
  run('tc', '-n', name, 'qdisc', 'add', 'dev', link0, 'root', 'handle', '1:', 'pfifo');
  expect(await rootQdisc(inside)).toMatchObject({ handle: 1, kind: 'pfifo', tbf: null });
  for (const rate of [1000, 2000]) {
    expect(codes(await inside.batch([replace(bucket(rate, 1514, 3000))]))).toEqual(['ok']);
    expect(shown(name)).toMatchObject({ kind: 'tbf', handle: '5057:', options: { rate } });
  }
  run('tc', '-n', name, 'qdisc', 'replace', 'dev', link0, 'root', 'handle', '2:', 'pfifo');
  expect(codes(await inside.batch([replace(bucket(1000, 1514, 3000), 2)]))).toEqual(['EINVAL']);
  expect(codes(await inside.batch([{ type: 'qdisc.delete', link }]))).toEqual(['ok']);
  expect(await rootKind(inside)).toMatch(/^noop|noqueue$/);
});

it('stays while the link goes down and up, and goes with the link', async () => {
  const { name, inside } = await withLink();
  const up = (up: boolean) => ({ type: 'link.set', link, up }) as const;
  expect(codes(await inside.batch([replace(bucket(1000, 1514, 3000)), up(true), up(false), up(true)]))).toEqual([
    'ok',
    'ok',
    'ok',
    'ok',
  ]);
  expect(shown(name)).toMatchObject({ kind: 'tbf', handle: '5057:' });
  await inside.deleteLink(link);
  expect(codes(await inside.batch([{ type: 'qdisc.get', link }]))).toEqual(['ENODEV']);
});
