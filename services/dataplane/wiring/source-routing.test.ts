import { describe, expect, test } from 'vitest';

import { address, matchingObservation, BY_FAMILY, withChanges, podNetwork } from '../testing/pods.js';
import { diff, differences } from './diff.js';
import { wantedState, RULE_PRIORITY, tableOf } from './network.js';
import type { Observed, ObservedEnd, ObservedRoute } from './observed.js';
import { withSourceRouting, isSecondaryInterface } from './source-routing.js';
import { formatStep, rollbackSteps, type Step } from './step.js';
import { emptyObservation } from './wire.js';

const TABLE = 1_472_194_635;

const first = podNetwork('a', BY_FAMILY['both families']);
const attachment = { ...first.attachment, interfaceName: 'net1' };
const second = podNetwork('a', {
  attachment,
  hostInterfaceName: 'podwsecond',
  addresses: [address('10.66.0.7'), address('fd66::7')],
  routes: first.routes,
});
const wanted = wantedState(second);

/** The main-table routes of an interface of the pod. */
const routesOf = (device: string, above = 0): ObservedRoute[] =>
  matchingObservation(first).pod.routes.map((route) => ({ ...route, device, metric: route.metric + above }));

/** The pod's end of an interface that is complete, beside another one with the same routes. */
function besideEth0(): ObservedEnd {
  const routes = [...routesOf('eth0'), ...routesOf('net1', 1)];
  const { pod } = withSourceRouting(wanted, { routes, hasEarlierLink: true });
  const own = pod.routes.filter(({ table }) => table !== undefined);
  const shown = own.map((route): ObservedRoute => ({ ...route, deviceAlias: null, unicast: true }));
  return withChanges(matchingObservation(second).pod, {
    routes: [...routes, ...shown],
    rules: pod.rules,
    hasEarlierLink: true,
  });
}

const complete: Observed = { host: matchingObservation(second).host, pod: besideEth0() };
const inPod = (change: Partial<ObservedEnd>): Observed => ({ ...complete, pod: withChanges(complete.pod, change) });
const reported = (observed: Observed) =>
  differences(wanted, observed).map(({ object, wanted: is, actual }) => `${object}: ${actual}, not ${is}`);

describe('the table of an interface', () => {
  test('is in Podwire’s range, apart from tables that operators number', () => {
    for (const name of ['net1', 'eth0', 'a', 'x'.repeat(15), 'ü']) {
      expect(tableOf(name) >>> 24).toBe(87);
      expect(Number.isSafeInteger(tableOf(name))).toBe(true);
    }
    expect([tableOf('net1'), RULE_PRIORITY]).toEqual([TABLE, 30_087]);
  });

  test('differs from the tables of a pod’s other interfaces', () => {
    const names = ['eth', 'net', 'podw', 'ext-'].flatMap((name) =>
      Array.from({ length: 250 }, (_, n) => `${name}${n}`),
    );
    expect(new Set(names.map(tableOf)).size).toBe(names.length);
  });
});

describe('an interface', () => {
  const main = matchingObservation(second).pod.routes;

  test.each<readonly [string, boolean, readonly ObservedRoute[], boolean]>([
    ['without further interfaces is the pod’s first', false, [], false],
    ['that has all its routes is the first', false, main, false],
    ['beside an earlier one is not', true, main, true],
    ['whose destinations another one has is not', false, routesOf('eth0'), true],
    ['that has kept a worse metric is not', false, routesOf('net1', 1), true],
    ['that has a table of its own is not', false, [...main, { ...main[1]!, table: TABLE }], true],
    ['with a later one beside it is the first', false, [...main, ...routesOf('net2', 1)], false],
  ])('%s', (_, hasEarlierLink, routes, expected) => {
    expect(isSecondaryInterface(wanted.pod, { routes, hasEarlierLink: hasEarlierLink })).toBe(expected);
    expect(withSourceRouting(wanted, { routes, hasEarlierLink: hasEarlierLink }).pod.rules.length).toBe(
      expected ? 2 : 0,
    );
  });

  test('that is the first has a plan without rules', () => {
    const types = diff(wantedState(first), emptyObservation()).map(({ type }) => type);
    expect(types.filter((type) => type.startsWith('rule'))).toEqual([]);
  });
});

describe('a later interface', () => {
  test('gets a route and a rule for each family: the rule after its route, both before the node’s routes', () => {
    const bare: Observed = {
      ...emptyObservation(),
      pod: { ...emptyObservation().pod, routes: routesOf('eth0'), hasEarlierLink: true },
    };
    const steps = diff(wanted, bare).map(formatStep);
    const at = steps.indexOf('ip -n pod route add default via 169.254.1.1 dev net1 proto 87 metric 1');
    expect(steps.slice(at, at + 6)).toEqual([
      'ip -n pod route add default via 169.254.1.1 dev net1 proto 87 metric 1',
      'ip -n pod route add default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1025',
      `ip -n pod route add default via 169.254.1.1 dev net1 proto 87 onlink table ${TABLE}`,
      `ip -n pod route add default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1024 table ${TABLE}`,
      `ip -n pod rule add from 10.66.0.7 lookup ${TABLE} priority 30087 protocol 87`,
      `ip -n pod rule add from fd66::7 lookup ${TABLE} priority 30087 protocol 87`,
    ]);
    expect(steps.slice(-2)).toEqual([
      'ip route add 10.66.0.7 dev podwsecond proto 87 scope link',
      'ip route add fd66::7 dev podwsecond proto 87 metric 1024',
    ]);
    const undone = rollbackSteps(diff(wanted, bare)).map(formatStep);
    expect(undone.filter((step) => step.includes('rule'))).toHaveLength(2);
    expect(undone.filter((step) => step.includes('route'))).toEqual([]);
    expect(undone.at(-1)).toBe('ip link delete podwsecond');
  });

  test('matches with them', () => {
    expect(diff(wanted, complete)).toEqual([]);
  });

  test('is reported without its routes while it has none, whatever the first one has', () => {
    expect(reported(inPod({ routes: routesOf('eth0') }))).toEqual(
      [
        'pod route 169.254.1.1 dev net1 proto 87 scope link metric 1',
        'pod route default via 169.254.1.1 dev net1 proto 87 metric 1',
        'pod route default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1025',
        `pod route default via 169.254.1.1 dev net1 proto 87 onlink table ${TABLE}`,
        `pod route default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1024 table ${TABLE}`,
      ].map((route) => `${route}: missing, not present`),
    );
  });

  test('gets routes with a manually changed metric back', () => {
    const routes = complete.pod.routes.map((route) =>
      route.device === 'net1' && route.table === undefined ? { ...route, metric: route.metric + 200 } : route,
    );
    expect(diff(wanted, inPod({ routes })).map(formatStep)).toEqual([
      'ip -n pod route add 169.254.1.1 dev net1 proto 87 scope link metric 1',
      'ip -n pod route add default via 169.254.1.1 dev net1 proto 87 metric 1',
      'ip -n pod route add default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1025',
      'ip -n pod route delete default via 169.254.1.1 dev net1 proto 87 metric 201',
      'ip -n pod route delete default via fe80::ecee:eeff:feee:eeee dev net1 proto 87 metric 1225',
      'ip -n pod route delete 169.254.1.1 dev net1 proto 87 scope link metric 201',
    ]);
  });

  test('is reported with the missing rule', () => {
    expect(reported(inPod({ rules: complete.pod.rules.slice(1) }))).toEqual([
      `pod rule from 10.66.0.7 lookup ${TABLE} priority 30087 protocol 87: missing, not present`,
    ]);
  });

  test('loses a rule of a former address, and of another priority', () => {
    const [rule] = complete.pod.rules;
    const rules = [...complete.pod.rules, { ...rule!, source: '10.66.0.8/32' }, { ...rule!, priority: 5 }];
    expect(diff(wanted, inPod({ rules })).map(formatStep)).toEqual([
      `ip -n pod rule delete from 10.66.0.8 lookup ${TABLE} priority 30087 protocol 87`,
      `ip -n pod rule delete from 10.66.0.7 lookup ${TABLE} priority 5 protocol 87`,
    ]);
  });

  test('gets its table’s route back when another replaced it', () => {
    const routes = complete.pod.routes.map((route) =>
      route.table === TABLE && route.metric === 0 ? { ...route, device: 'eth0' } : route,
    );
    expect(diff(wanted, inPod({ routes })).map(formatStep)).toEqual([
      `ip -n pod route replace default via 169.254.1.1 dev net1 proto 87 onlink table ${TABLE}`,
    ]);
  });

  test('keeps its source routing when the first one is detached', () => {
    const routes = complete.pod.routes.filter(({ device }) => device === 'net1');
    expect(diff(wanted, inPod({ routes, hasEarlierLink: false }))).toEqual([]);
  });
});

test('the inverse of a rule is its deletion, and vice versa', () => {
  const rule = { source: '10.66.0.7/32', table: TABLE, priority: RULE_PRIORITY, protocol: 87 };
  const [add, remove] = (['rule-add', 'rule-delete'] as const).map((type): Step => ({ type, side: 'pod', rule }));
  expect([rollbackSteps([add!]), rollbackSteps([remove!])]).toEqual([[remove], [add]]);
});
