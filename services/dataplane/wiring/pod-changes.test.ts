import { describe, expect, test } from 'vitest';

import { matchingObservation, withChanges, podNetwork } from '../testing/pods.js';
import { differences, withPodChanges } from './diff.js';
import { wantedState } from './network.js';
import type { Observed, ObservedLink } from './observed.js';

const network = podNetwork('a', { hostInterfaceName: 'podwa', mtuBytes: 1400, txQueueLength: 500 });
const wanted = wantedState(network);
const good = matchingObservation(network);

const inPod = (link: Partial<ObservedLink>, sysctls = good.pod.sysctls): Observed => ({
  ...good,
  pod: withChanges(good.pod, { sysctls }, link),
});
const withOwnMac = (mac: string): Observed => ({
  host: { ...good.host, neighbours: good.host.neighbours.map((neighbour) => ({ ...neighbour, mac })) },
  pod: withChanges(good.pod, {}, { mac }),
});
const bothMtus = (mtuBytes: number): Observed => ({
  host: withChanges(good.host, {}, { mtuBytes }),
  pod: withChanges(good.pod, {}, { mtuBytes }),
});
const objects = (observed: Observed) =>
  differences(withPodChanges(wanted, observed), observed).map(({ object }) => object);

describe('in a wired pod', () => {
  test.each<readonly [string, Observed]>([
    ['a lower MTU', inPod({ mtuBytes: 1380 })],
    ['another queue length', inPod({ txQueueLength: 1 })],
    ['forwarding', inPod({}, new Map([...good.pod.sysctls, ['net/ipv4/ip_forward', '1']]))],
    ['another MAC address that the node knows', withOwnMac('02:00:00:00:00:99')],
  ])('%s is accepted', (_, observed) => {
    expect(differences(wanted, observed)).not.toEqual([]);
    expect(objects(observed)).toEqual([]);
  });

  test('the node’s neighbour entries follow its MAC address', () => {
    expect(objects(inPod({ mac: '02:00:00:00:00:99' }))).toEqual([
      'host neighbour 10.65.0.7 dev podwa lladdr 02:00:00:00:00:99 nud permanent',
    ]);
  });

  test('an MTU above the wire’s is not accepted', () => {
    expect(objects(inPod({ mtuBytes: 9000 }))).toEqual(['pod link eth0 mtu']);
  });

  test.each([1300, 1500])('an MTU equal to the node’s (%d) follows the wanted state', (mtuBytes) => {
    expect(objects(bothMtus(mtuBytes))).toEqual(['host link podwa mtu', 'pod link eth0 mtu']);
  });

  test('changes of the node’s end are never accepted', () => {
    const observed = { ...good, host: withChanges(good.host, {}, { mtuBytes: 1300, txQueueLength: 7 }) };
    expect(objects(observed)).toEqual(['host link podwa mtu', 'host link podwa txqueuelen']);
  });
});

test('a recreated wire gets the whole wanted state', () => {
  const cut: Observed = { host: { ...good.host, link: undefined }, pod: { ...good.pod, link: undefined } };
  expect(withPodChanges(wanted, cut)).toBe(wanted);
});
