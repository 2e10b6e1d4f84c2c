import { describe, expect, test } from 'vitest';

import { asWanted, changed, podNetwork } from '../testing/pods.js';
import { differences, withPodsOwn } from './diff.js';
import { desired } from './network.js';
import type { Observed, ObservedLink } from './observed.js';

const network = podNetwork('a', { hostInterfaceName: 'podwa', mtuBytes: 1400, txQueueLength: 500 });
const wanted = desired(network);
const good = asWanted(network);

const inPod = (link: Partial<ObservedLink>, sysctls = good.pod.sysctls): Observed => ({
  ...good,
  pod: changed(good.pod, { sysctls }, link),
});
const withOwnMac = (mac: string): Observed => ({
  host: { ...good.host, neighbours: good.host.neighbours.map((neighbour) => ({ ...neighbour, mac })) },
  pod: changed(good.pod, {}, { mac }),
});
const bothMtus = (mtuBytes: number): Observed => ({
  host: changed(good.host, {}, { mtuBytes }),
  pod: changed(good.pod, {}, { mtuBytes }),
});
const objects = (observed: Observed) =>
  differences(withPodsOwn(wanted, observed), observed).map(({ object }) => object);

describe('of a pod that has its wire', () => {
  test.each<readonly [string, Observed]>([
    ['a lower MTU', inPod({ mtuBytes: 1380 })],
    ['another queue length', inPod({ txQueueLength: 1 })],
    ['forwarding', inPod({}, new Map([...good.pod.sysctls, ['net/ipv4/ip_forward', '1']]))],
    ['another MAC address, which the node knows', withOwnMac('02:00:00:00:00:99')],
  ])('%s is its own', (_, observed) => {
    expect(differences(wanted, observed)).not.toEqual([]);
    expect(objects(observed)).toEqual([]);
  });

  test('the node’s neighbour entries follow its MAC address', () => {
    expect(objects(inPod({ mac: '02:00:00:00:00:99' }))).toEqual([
      'host neighbour 10.65.0.7 dev podwa lladdr 02:00:00:00:00:99 nud permanent',
    ]);
  });

  test('an MTU that packets of the pod would not get through with is not', () => {
    expect(objects(inPod({ mtuBytes: 9000 }))).toEqual(['pod link eth0 mtu']);
  });

  test.each([1300, 1500])('an MTU that is the node’s (%d) follows what is wanted of both', (mtuBytes) => {
    expect(objects(bothMtus(mtuBytes))).toEqual(['host link podwa mtu', 'pod link eth0 mtu']);
  });

  test('the node’s end is never', () => {
    const observed = { ...good, host: changed(good.host, {}, { mtuBytes: 1300, txQueueLength: 7 }) };
    expect(objects(observed)).toEqual(['host link podwa mtu', 'host link podwa txqueuelen']);
  });
});

test('a pod whose wire is made anew gets all that is wanted', () => {
  const cut: Observed = { host: { ...good.host, link: undefined }, pod: { ...good.pod, link: undefined } };
  expect(withPodsOwn(wanted, cut)).toBe(wanted);
});
