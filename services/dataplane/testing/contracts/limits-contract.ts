import type { RateLimit } from '@podwire/shared/attachment/bandwidth';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { describe, expect, test } from 'vitest';

import { diff, differences } from '../../wiring/diff.js';
import { wantedState } from '../../wiring/network.js';
import { inverseOf, type Step } from '../../wiring/step.js';
import { emptyObservation } from '../../wiring/wire.js';
import { KernelUnderTest, type KernelFixture } from '../kernels.js';
import { podNetwork } from '../pods.js';

const HOST = 'podwcontract';
const unlimited = podNetwork('contract', { hostInterfaceName: HOST });

const limit = (rateBitsPerSecond: number, burstBits?: number): RateLimit => ({ rateBitsPerSecond, burstBits });
const limited = (ingress: RateLimit, egress: RateLimit): PodNetwork => ({
  ...unlimited,
  bandwidth: { ingress, egress },
});

/** Lowest and highest values, and a bucket that takes longer to fill than the kernel can report. */
const LIMITS: readonly (readonly [RateLimit, RateLimit])[] = [
  [limit(10_000_000), limit(1_000_000, 800_000)],
  [limit(1000), limit(10 ** 15)],
  [limit(1000, 34_359_738_360), limit(10 ** 15, 34_359_738_360)],
  [limit(1_000_000, 4_294_967_295), limit(40_000_000_001, 1000)],
  [limit(12_345_678, 7_654_321), limit(999_999_999)],
];

/** The contract of every kernel for limits of a pod's packets. */
export function limitsContract(setUp: () => Promise<KernelFixture>): void {
  const under = new KernelUnderTest(setUp);
  const observed = (network: PodNetwork) => under.session.observe(wantedState(network));
  const plan = async (network: PodNetwork) => diff(wantedState(network), await observed(network));
  const types = (steps: readonly Step[]) => steps.map(({ type, side }) => `${side} ${type}`);

  const create = (network: PodNetwork) => under.applyAll(diff(wantedState(network), emptyObservation()));

  describe('limits', () => {
    test.each(LIMITS)('of %j and %j are set with a new pod, and match', async (ingress, egress) => {
      await create(limited(ingress, egress));
      expect(await plan(limited(ingress, egress))).toEqual([]);
    });

    test('are set for an unlimited pod, changed, reverted and deleted', async () => {
      await create(unlimited);
      const [first, second] = LIMITS.map(([ingress, egress]) => limited(ingress, egress));
      for (const next of [first!, second!]) {
        const steps = await plan(next);
        expect(types(steps)).toEqual(['host limit-set', 'pod limit-set']);
        await under.applyAll(steps);
        expect(await plan(next)).toEqual([]);
      }
      const back = await plan(first!);
      await under.applyAll(back);
      await under.applyAll(back.toReversed().flatMap((step) => inverseOf(step) ?? []));
      expect(await plan(second!)).toEqual([]);
      const removal = await plan(unlimited);
      expect(types(removal)).toEqual(['host limit-delete', 'pod limit-delete']);
      await under.applyAll(removal);
      expect(await plan(unlimited)).toEqual([]);
      expect([(await observed(unlimited)).host.qdisc, (await observed(unlimited)).pod.qdisc]).toEqual([
        undefined,
        undefined,
      ]);
    });

    test('replace a qdisc of another program, which stays without limits', async () => {
      await create(unlimited);
      under.fixture.setQdisc(HOST, {});
      under.fixture.setQdisc('eth0', { pod: 'contract' });
      expect(await plan(unlimited)).toEqual([]);
      const network = limited(limit(1_000_000), limit(1_000_000));
      const found = differences(wantedState(network), await observed(network));
      expect(found.map(({ actual }) => actual)).toEqual(['pfifo', 'pfifo']);
      await under.applyAll(await plan(network));
      expect(await plan(network)).toEqual([]);
    });

    test('are refused on a missing link, and cannot be deleted twice', async () => {
      const place = { side: 'host', device: HOST, previous: undefined } as const;
      const { bucket } = wantedState(limited(limit(1000), limit(1000))).host;
      expect(await under.refusal({ type: 'limit-set', ...place, bucket: bucket! })).toBe('ENODEV KERNEL_REFUSED');
      await create(unlimited);
      expect(await under.refusal({ type: 'limit-delete', ...place })).toBe('ENOENT KERNEL_REFUSED');
    });
  });
}
