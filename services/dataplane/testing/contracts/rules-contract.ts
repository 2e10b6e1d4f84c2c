import { describe, expect, test } from 'vitest';

import { diff } from '../../wiring/diff.js';
import { wantedState, tableOf, type Wanted } from '../../wiring/network.js';
import { rollbackSteps, type Route, type Rule, type Step } from '../../wiring/step.js';
import { emptyObservation } from '../../wiring/wire.js';
import { KernelUnderTest, type KernelFixture } from '../kernels.js';
import { BY_FAMILY, podNetwork, secondInterface } from '../pods.js';

const first = podNetwork('contract', { ...BY_FAMILY['both families'], hostInterfaceName: 'podwcontract' });
const second = secondInterface('contract');
const TABLE = tableOf('net1');

const rule = (source: string, rest: Partial<Rule> = {}): Rule => {
  return { source, table: TABLE, priority: 30_087, protocol: 87, ...rest };
};
const add = (of: Rule): Step => ({ type: 'rule-add', side: 'pod', rule: of });
const remove = (of: Rule): Step => ({ type: 'rule-delete', side: 'pod', rule: of });

/** The contract of every kernel for rules and their tables. */
export function rulesContract(setUp: () => Promise<KernelFixture>): void {
  const under = new KernelUnderTest(setUp);
  const { applyAll, refusal } = {
    applyAll: (steps: readonly Step[]) => under.applyAll(steps),
    refusal: (step: Step) => under.refusal(step),
  };
  const own = async (table = TABLE) => (await under.session.rules(table)).map(({ source }) => source).toSorted();
  const observed = (wanted: Wanted) => under.session.observe(wanted);
  const reach = async (wanted: Wanted) => applyAll(diff(wanted, await observed(wanted)));

  describe('rules', () => {
    test('are listed by their table, without foreign ones', async () => {
      const [four, six] = [rule('10.66.0.7/32'), rule('fd66::7/128')];
      const foreign = [rule('10.66.0.8/32', { table: 100 }), rule('10.66.0.9/32', { protocol: 4 })];
      await applyAll([four, six, ...foreign].map(add));
      expect(await under.session.rules(TABLE)).toEqual(expect.arrayContaining([four, six]));
      expect([await own(), await own(100), await own(101)]).toEqual([[four.source, six.source], ['10.66.0.8/32'], []]);
    });

    test.each(['10.66.0.7/32', 'fd66::7/128'])('from %s are created once, and deleted once', async (source) => {
      await applyAll([add(rule(source))]);
      expect(await refusal(add(rule(source)))).toBe('EEXIST KERNEL_REFUSED');
      await applyAll([add(rule(source, { priority: 30_088 })), remove(rule(source, { priority: 30_088 }))]);
      expect(await own()).toEqual([source]);
      await applyAll([remove(rule(source))]);
      expect(await refusal(remove(rule(source)))).toBe('ENOENT KERNEL_REFUSED');
      expect(await own()).toEqual([]);
    });

    test('belong to no link and outlive it', async () => {
      await applyAll(diff(wantedState(first), emptyObservation()));
      await applyAll([add(rule('10.65.0.7/32')), { type: 'link-delete', side: 'host', name: 'podwcontract' }]);
      expect(await own()).toEqual(['10.65.0.7/32']);
    });
  });

  describe('orphan rules', () => {
    const orphans = async () => (await under.session.orphanRules()).map(({ source }) => source).toSorted();

    test('are Podwire’s rules of a table without routes and without a link', async () => {
      await reach(wantedState(first));
      const [four, six] = [rule('10.66.0.7/32'), rule('fd66::7/128')];
      const foreign = [{ table: 100 }, { protocol: 4 }, { priority: 30_088 }].map((rest) => rule('10.66.0.8/32', rest));
      await applyAll([four, six, ...foreign].map(add));
      expect(await orphans()).toEqual([four.source, six.source]);
      expect(await under.session.orphanRules()).toContainEqual(four);
      await applyAll([add(rule('10.65.0.7/32', { table: tableOf('eth0') }))]);
      expect(await orphans()).toEqual([four.source, six.source]);
      const route: Route = {
        destination: '0.0.0.0/0',
        device: 'eth0',
        gateway: undefined,
        metric: 0,
        scope: 'link',
        protocol: 87,
        table: TABLE,
      };
      await applyAll([{ type: 'route-add', side: 'pod', route }]);
      expect(await orphans()).toEqual([]);
    });
  });

  describe('an interface’s own table', () => {
    const route: Route = {
      destination: '0.0.0.0/0',
      device: 'eth0',
      gateway: '169.254.1.1',
      metric: 0,
      scope: 'global',
      protocol: 87,
      table: tableOf('eth0'),
      onlink: true,
    };
    const isIn = async () =>
      (await observed(wantedState(first))).pod.routes.filter(({ table }) => table === route.table);

    test('has its routes apart from the main table', async () => {
      await applyAll(diff(wantedState(first), emptyObservation()));
      await applyAll([{ type: 'route-add', side: 'pod', route }]);
      expect(await isIn()).toMatchObject([route]);
      expect(await refusal({ type: 'route-add', side: 'pod', route })).toBe('EEXIST ROUTE_TAKEN');
      await applyAll([{ type: 'route-delete', side: 'pod', route }]);
      expect(await isIn()).toEqual([]);
      expect(diff(wantedState(first), await observed(wantedState(first)))).toEqual([]);
    });

    test.each<readonly [string, readonly Step[]]>([
      ['goes down', [{ type: 'link-set', side: 'pod', name: 'eth0', change: { up: false }, previous: { up: true } }]],
      ['loses its last address', [{ type: 'address-delete', side: 'pod', device: 'eth0', address: '10.65.0.7/32' }]],
    ])('loses its routes like the main table when the link %s', async (_, steps) => {
      await applyAll(diff(wantedState(first), emptyObservation()));
      await applyAll([{ type: 'route-add', side: 'pod', route }, ...steps]);
      expect(await isIn()).toEqual([]);
    });
  });

  describe('the second interface of a pod', () => {
    test('is observed as later than the first, and not the reverse', async () => {
      await reach(wantedState(first));
      expect((await observed(wantedState(second))).pod.hasEarlierLink).toBe(true);
      await reach(wantedState(second));
      const later = await Promise.all(
        [first, second].map(async (each) => (await observed(wantedState(each))).pod.hasEarlierLink),
      );
      expect(later).toEqual([false, true]);
    });

    test('gets rules and routes of its own; then neither differs', async () => {
      await reach(wantedState(first));
      await reach(wantedState(second));
      expect(await own()).toEqual(['10.66.0.7/32', 'fd66::7/128']);
      expect(await own(tableOf('eth0'))).toEqual([]);
      const left = await Promise.all(
        [first, second].map(async (each) => diff(wantedState(each), await observed(wantedState(each)))),
      );
      expect(left).toEqual([[], []]);
    });

    test('loses them at a rollback', async () => {
      await reach(wantedState(first));
      const before = await observed(wantedState(second));
      const steps = diff(wantedState(second), before);
      await applyAll(steps);
      await applyAll(rollbackSteps(steps));
      expect([await own(), await observed(wantedState(second))]).toEqual([[], before]);
    });
  });
}
