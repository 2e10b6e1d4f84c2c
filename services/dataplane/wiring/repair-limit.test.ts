import { BURST_BITS, RATE_BITS, type RateLimit } from '@podwire/shared/attachment/bandwidth';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { matchingObservation, podNetwork, withChanges } from '../testing/pods.js';
import { diff, differences } from './diff.js';
import { wantedState } from './network.js';
import type { Observed } from './observed.js';
import { bucketTicks, tokenBucket, type RootQdisc } from './token-bucket.js';
import { formatStep, inverseOf, rollbackSteps } from './step.js';
import { emptyObservation } from './wire.js';

const limit = (rateBitsPerSecond: number, burstBits?: number): RateLimit => ({ rateBitsPerSecond, burstBits });

const unlimited = podNetwork('a', { hostInterfaceName: 'podwa' });
const network = { ...unlimited, bandwidth: { ingress: limit(10_000_000), egress: limit(1_000_000, 800_000) } };
const wanted = wantedState(network);
const good = matchingObservation(network);

const withQdisc = (qdisc: RootQdisc | undefined): Observed => ({ ...good, host: withChanges(good.host, { qdisc }) });
const own = (bucket: ReturnType<typeof tokenBucket>): RootQdisc => ({
  kind: 'tbf',
  bucket: { ...bucket, bucketTicks: bucketTicks(bucket) },
});
const steps = (observed: Observed, to = wanted) => diff(to, observed).map(formatStep);
const found = (observed: Observed, to = wanted) =>
  differences(to, observed).map((each) => `${each.object}: ${each.wanted}, not ${each.actual}`);

const INGRESS = 'tbf rate 10000000bit burst 62500 limit 93750';
const EGRESS = 'tbf rate 1000000bit burst 100000 limit 103125';

describe('a bucket', () => {
  test.each([
    ['50 ms of the rate without a burst', limit(10_000_000), [1_250_000, 62_500, 93_750]],
    ['the burst, and 25 ms of the rate that may wait', limit(10_000_000, 8_000_000), [1_250_000, 1_000_000, 1_031_250]],
    ['a packet of the MTU at least', limit(1000, 1000), [125, 1514, 1517]],
    ['4 GB at most', limit(10 ** 15, BURST_BITS.max), [125e12, 2 ** 32 - 1, 2 ** 32 - 1]],
  ])('holds %s', (_, from, [rateBytesPerSecond, burstBytes, limitBytes]) => {
    expect(tokenBucket(from, 1500)).toEqual({ rateBytesPerSecond, burstBytes, limitBytes });
  });

  test('of any limit is one of the kernel', () => {
    const rates = fc.integer(RATE_BITS);
    const bursts = fc.option(fc.integer(BURST_BITS), { nil: undefined });
    fc.assert(
      fc.property(rates, bursts, fc.integer({ min: 68, max: 65_535 }), (rate, burst, mtuBytes) => {
        const bucket = tokenBucket(limit(rate, burst), mtuBytes);
        for (const bytes of [bucket.burstBytes, bucket.limitBytes]) {
          expect(bytes).toBeGreaterThanOrEqual(mtuBytes + 14);
          expect(bytes).toBeLessThan(2 ** 32);
        }
        expect(bucket.limitBytes).toBeGreaterThanOrEqual(bucket.burstBytes);
        expect(Number.isSafeInteger(bucketTicks(bucket))).toBe(true);
      }),
    );
  });
});

describe('limits', () => {
  test('of a new pod are set before its interfaces are up', () => {
    const plan = diff(wanted, emptyObservation()).map(formatStep);
    const [add, host, pod] = [/link add/, /^tc qdisc/, /^tc -n pod/].map((each) =>
      plan.findIndex((step) => each.test(step)),
    );
    expect([plan[host!], plan[pod!]]).toEqual([
      `tc qdisc replace dev podwa root handle 5057: ${INGRESS}`,
      `tc -n pod qdisc replace dev eth0 root handle 5057: ${EGRESS}`,
    ]);
    const up = (name: string) => plan.findIndex((step) => step.includes(`link set ${name}`) && step.endsWith(' up'));
    expect(add).toBeLessThan(host!);
    expect(host).toBeLessThan(up('podwa'));
    expect(pod).toBeLessThan(up('eth0'));
    expect(rollbackSteps(diff(wanted, emptyObservation())).map(formatStep)).not.toContainEqual(
      expect.stringContaining('qdisc'),
    );
  });

  test('are no part of the plan for an unlimited pod', () => {
    const plan = diff(wantedState(unlimited), emptyObservation()).map(formatStep);
    expect(plan.filter((step) => step.startsWith('tc'))).toEqual([]);
    expect(diff(wanted, emptyObservation())).toHaveLength(plan.length + 2);
  });

  test('that match need no step, also with the rounding of the kernel', () => {
    expect(diff(wanted, good)).toEqual([]);
    const bucket = wanted.host.bucket!;
    for (const ticks of [-1, 1])
      expect(
        steps(withQdisc({ kind: 'tbf', bucket: { ...bucket, bucketTicks: bucketTicks(bucket) + ticks } })),
      ).toEqual([]);
  });

  test.each<readonly [string, RootQdisc | undefined, readonly string[], string]>([
    ['missing', undefined, [`tc qdisc replace dev podwa root handle 5057: ${INGRESS}`], 'missing'],
    [
      'of another rate',
      own(tokenBucket(limit(20_000_000), 1500)),
      [`tc qdisc replace dev podwa root handle 5057: ${INGRESS}`],
      'tbf rate 20000000bit burst 125000 limit 187500',
    ],
    [
      'of another burst',
      own({ ...tokenBucket(limit(10_000_000), 1500), burstBytes: 60_000 }),
      [`tc qdisc replace dev podwa root handle 5057: ${INGRESS}`],
      'tbf rate 10000000bit burst 60000 limit 93750',
    ],
    [
      'of another program',
      { kind: 'pfifo', bucket: undefined },
      ['tc qdisc delete dev podwa root', `tc qdisc replace dev podwa root handle 5057: ${INGRESS}`],
      'pfifo',
    ],
  ])('%s are repaired', (_, qdisc, commands, actual) => {
    expect(steps(withQdisc(qdisc))).toEqual(commands);
    expect(found(withQdisc(qdisc))).toEqual([`host qdisc dev podwa root: ${INGRESS}, not ${actual}`]);
  });

  test('that are no longer wanted are deleted; a qdisc of another program stays', () => {
    const none = wantedState(unlimited);
    expect(steps(good, none)).toEqual(['tc qdisc delete dev podwa root', 'tc -n pod qdisc delete dev eth0 root']);
    expect(found(good, none)[1]).toBe(`pod qdisc dev eth0 root: absent, not ${EGRESS}`);
    const foreign = { kind: 'tbf', bucket: undefined };
    const { host, pod } = matchingObservation(unlimited);
    expect(diff(none, { host: withChanges(host, { qdisc: foreign }), pod })).toEqual([]);
  });

  test('are reverted to the earlier ones', () => {
    const earlier = own(tokenBucket(limit(20_000_000), 1500));
    const [change] = diff(wanted, withQdisc(earlier));
    expect(formatStep(inverseOf(change!)!)).toContain('tbf rate 20000000bit burst 125000 limit 187500');
    const [set] = diff(wanted, withQdisc(undefined));
    expect(formatStep(inverseOf(set!)!)).toBe('tc qdisc delete dev podwa root');
    expect(inverseOf(inverseOf(set!)!)).toEqual(set);
    const [removal] = diff(wanted, withQdisc({ kind: 'pfifo', bucket: undefined }));
    expect(inverseOf(removal!)).toBeUndefined();
  });
});
