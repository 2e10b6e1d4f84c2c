import { describe, expect, test } from 'vitest';

import { podNetwork } from '../testing/pods.js';
import { diff } from './diff.js';
import { wantedState } from './network.js';
import { formatKey, formatStep, inverseOf, rollbackSteps, type Neighbour, type Route, type Step } from './step.js';
import { emptyObservation } from './wire.js';

const route: Route = {
  destination: '10.0.0.0/8',
  device: 'eth0',
  gateway: '169.254.1.1',
  metric: 0,
  scope: 'global',
  protocol: 87,
};
const neighbour: Neighbour = { device: 'eth0', address: '169.254.1.1', mac: 'ee:ee:ee:ee:ee:ee' };
const earlier: Neighbour = { ...neighbour, mac: '02:00:00:00:00:01' };

const sysctl = (previous: string | undefined): Step => ({
  type: 'sysctl-write',
  side: 'pod',
  key: ['net', 'ipv4', 'ip_forward'],
  value: '0',
  previous,
  device: undefined,
  optional: false,
});

describe('the inverse', () => {
  test.each<readonly [Step, string]>([
    [
      {
        type: 'link-set',
        side: 'host',
        name: 'h',
        change: { up: true, alias: 'x' },
        previous: { up: false, alias: '' },
      },
      'ip link set h alias "" down',
    ],
    [
      { type: 'address-add', side: 'pod', device: 'eth0', address: '10.0.0.1/32' },
      'ip -n pod address delete 10.0.0.1/32 dev eth0',
    ],
    [
      { type: 'address-delete', side: 'pod', device: 'eth0', address: '10.0.0.1/32' },
      'ip -n pod address add 10.0.0.1/32 dev eth0',
    ],
    [{ type: 'route-add', side: 'pod', route }, 'ip -n pod route delete 10.0.0.0/8 via 169.254.1.1 dev eth0 proto 87'],
    [{ type: 'route-delete', side: 'pod', route }, 'ip -n pod route add 10.0.0.0/8 via 169.254.1.1 dev eth0 proto 87'],
    [
      { type: 'route-replace', side: 'pod', route, previous: { ...route, gateway: '10.1.1.1' } },
      'ip -n pod route replace 10.0.0.0/8 via 10.1.1.1 dev eth0 proto 87',
    ],
    [
      { type: 'neighbour-set', side: 'pod', neighbour, previous: undefined },
      'ip -n pod neighbour delete 169.254.1.1 dev eth0',
    ],
    [
      { type: 'neighbour-set', side: 'pod', neighbour, previous: earlier },
      'ip -n pod neighbour replace 169.254.1.1 dev eth0 lladdr 02:00:00:00:00:01 nud permanent',
    ],
    [
      { type: 'neighbour-delete', side: 'pod', neighbour },
      'ip -n pod neighbour replace 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
    ],
    [sysctl('1'), 'ip netns exec pod sysctl -w net.ipv4.ip_forward=1'],
  ])('%j', (step, command) => {
    const inverse = inverseOf(step)!;
    expect(formatStep(inverse)).toBe(command);
    expect(formatStep(inverseOf(inverse)!)).toBe(formatStep(step));
  });

  test('of a creation is the deletion; a stale wire’s deletion and an unknown sysctl have none', () => {
    const [create] = diff(wantedState(podNetwork('a', { hostInterfaceName: 'podwa' })), emptyObservation(new Map()));
    expect(formatStep(inverseOf(create!)!)).toBe('ip link delete podwa');
    expect(inverseOf({ type: 'link-delete', side: 'host', name: 'podwa' })).toBeUndefined();
    expect(inverseOf(sysctl(undefined))).toBeUndefined();
  });
});

describe('the rollback of', () => {
  const steps = diff(
    wantedState(podNetwork('a', { hostInterfaceName: 'podwa' })),
    emptyObservation(new Map([['net/ipv4/ip_forward', '1']])),
  );

  test('a new pod deletes the pair, and restores objects that are not on it', () => {
    expect(rollbackSteps(steps).map(formatStep)).toEqual([
      'ip netns exec pod sysctl -w net.ipv4.ip_forward=1',
      'ip link delete podwa',
    ]);
  });

  test('changes on existing links reverts them in reverse order', () => {
    const onPod = steps.filter((step) => step.side === 'pod' && step.type !== 'sysctl-write');
    expect(rollbackSteps(onPod).map(formatStep)).toEqual([
      'ip -n pod route delete default via 169.254.1.1 dev eth0 proto 87',
      'ip -n pod route delete 169.254.1.1 dev eth0 proto 87 scope link',
      'ip -n pod neighbour delete 169.254.1.1 dev eth0',
      'ip -n pod address delete 10.65.0.7/32 dev eth0',
      'ip -n pod link set eth0 down',
    ]);
  });

  test('a route that was taken over restores it before the pair is deleted', () => {
    const add = steps[0]!;
    const own: Route = {
      destination: '10.65.0.7/32',
      device: 'podwa',
      gateway: undefined,
      metric: 0,
      scope: 'link',
      protocol: 87,
    };
    const takeover: Step = { type: 'route-replace', side: 'host', route: own, previous: { ...own, device: 'podwold' } };
    expect(rollbackSteps([add, takeover]).map(formatStep)).toEqual([
      'ip route replace 10.65.0.7 dev podwold proto 87 scope link',
      'ip link delete podwa',
    ]);
  });
});

test('a dot in an interface’s name is a slash in a sysctl’s', () => {
  expect(formatKey(['net', 'ipv4', 'conf', 'eth0.5', 'proxy_arp'])).toBe('net.ipv4.conf.eth0/5.proxy_arp');
});
