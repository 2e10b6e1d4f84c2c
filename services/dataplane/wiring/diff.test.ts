import { describe, expect, test } from 'vitest';

import { matchingObservation, withChanges, podNetwork } from '../testing/pods.js';
import { corrections, diff, differences } from './diff.js';
import { wantedState } from './network.js';
import type { Observed, ObservedRoute } from './observed.js';
import { formatStep } from './step.js';

const network = podNetwork('a', { hostInterfaceName: 'podwa' });
const wanted = wantedState(network);
const good = matchingObservation(network);

const onHost = (...args: DropFirst<Parameters<typeof withChanges>>): Observed => ({
  ...good,
  host: withChanges(good.host, ...args),
});
const inPod = (...args: DropFirst<Parameters<typeof withChanges>>): Observed => ({
  ...good,
  pod: withChanges(good.pod, ...args),
});
type DropFirst<List extends unknown[]> = List extends [unknown, ...infer Rest] ? Rest : never;

const route = (destination: string, rest: Partial<ObservedRoute> = {}): ObservedRoute => ({
  destination,
  device: 'eth0',
  deviceAlias: null,
  gateway: '169.254.1.1',
  metric: 0,
  scope: 'global',
  protocol: 87,
  unicast: true,
  ...rest,
});

test('a matching state needs no step and has no difference', () => {
  expect(diff(wanted, good)).toEqual([]);
  expect(differences(wanted, good)).toEqual([]);
});

describe('a difference is repaired, and reported', () => {
  const cases: readonly (readonly [what: string, observed: Observed, commands: string[], reported: string[]])[] = [
    ['the host end is down', onHost({}, { up: false }), ['ip link set podwa up'], ['host link podwa: up, not down']],
    [
      'several attributes of one link, in one step; its neighbour entries vanished with its MAC address',
      onHost({ neighbours: [] }, { mac: '02:00:00:00:00:01', mtuBytes: 1400 }),
      [
        'ip link set podwa address ee:ee:ee:ee:ee:ee mtu 1500',
        `ip neighbour replace 10.65.0.7 dev podwa lladdr ${network.mac} nud permanent`,
      ],
      [
        'host link podwa address: ee:ee:ee:ee:ee:ee, not 02:00:00:00:00:01',
        'host link podwa mtu: 1500, not 1400',
        `host neighbour 10.65.0.7 dev podwa lladdr ${network.mac} nud permanent: present, not missing`,
      ],
    ],
    [
      'an incomplete host end without alias',
      onHost({}, { alias: null, up: false }),
      ['ip link set podwa alias "podwire:net/a/eth0" up'],
      ['host link podwa alias: podwire:net/a/eth0, not ', 'host link podwa: up, not down'],
    ],
    [
      'the pod’s MTU',
      inPod({}, { mtuBytes: 9000 }),
      ['ip -n pod link set eth0 mtu 1500'],
      ['pod link eth0 mtu: 1500, not 9000'],
    ],
    [
      'a sysctl of the node',
      onHost({ sysctls: new Map(good.host.sysctls).set('net/ipv4/conf/podwa/rp_filter', '0') }),
      ['sysctl -w net.ipv4.conf.podwa.rp_filter=1'],
      ['host sysctl net.ipv4.conf.podwa.rp_filter: 1, not 0'],
    ],
    [
      'forwarding in the pod',
      inPod({ sysctls: new Map([['net/ipv4/ip_forward', '1']]) }),
      ['ip netns exec pod sysctl -w net.ipv4.ip_forward=0'],
      ['pod sysctl net.ipv4.ip_forward: 0, not 1'],
    ],
    [
      'an optional sysctl that the kernel lacks',
      onHost({ sysctls: new Map(good.host.sysctls).set('net/ipv6/conf/podwa/accept_ra', null) }),
      [],
      [],
    ],
    [
      'the pod’s address is missing',
      inPod({ addresses: [] }),
      ['ip -n pod address add 10.65.0.7/32 dev eth0'],
      ['pod address 10.65.0.7 dev eth0: present, not missing'],
    ],
    [
      'the gateway’s neighbour entry is another',
      inPod({ neighbours: [{ address: '169.254.1.1', mac: '02:00:00:00:00:01', permanent: true }] }),
      ['ip -n pod neighbour replace 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent'],
      [
        'pod neighbour 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent: present, not lladdr 02:00:00:00:00:01',
      ],
    ],
    [
      'the node’s neighbour entry of the pod is missing',
      onHost({ neighbours: [] }),
      [`ip neighbour replace 10.65.0.7 dev podwa lladdr ${network.mac} nud permanent`],
      [`host neighbour 10.65.0.7 dev podwa lladdr ${network.mac} nud permanent: present, not missing`],
    ],
    [
      'the gateway’s neighbour entry was learned',
      inPod({ neighbours: [{ address: '169.254.1.1', mac: 'ee:ee:ee:ee:ee:ee', permanent: false }] }),
      ['ip -n pod neighbour replace 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent'],
      ['pod neighbour 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent: present, not not permanent'],
    ],
    [
      'all routes of the pod, the next hop’s own first',
      inPod({ routes: [] }),
      [
        'ip -n pod route add 169.254.1.1 dev eth0 proto 87 scope link',
        'ip -n pod route add default via 169.254.1.1 dev eth0 proto 87',
      ],
      [
        'pod route 169.254.1.1 dev eth0 proto 87 scope link: present, not missing',
        'pod route default via 169.254.1.1 dev eth0 proto 87: present, not missing',
      ],
    ],
    [
      'a route of the pod by another next hop',
      inPod({ routes: [...good.pod.routes.slice(0, 1), route('0.0.0.0/0', { gateway: '10.65.0.1' })] }),
      ['ip -n pod route replace default via 169.254.1.1 dev eth0 proto 87'],
      ['pod route default via 169.254.1.1 dev eth0 proto 87: present, not default via 10.65.0.1 dev eth0 proto 87'],
    ],
    [
      'the node’s route leads to an earlier pod',
      onHost({
        routes: [
          route('10.65.0.7/32', {
            device: 'podwold',
            deviceAlias: 'podwire:net/old/eth0',
            gateway: undefined,
            scope: 'link',
          }),
        ],
      }),
      ['ip route replace 10.65.0.7 dev podwa proto 87 scope link'],
      ['host route 10.65.0.7 dev podwa proto 87 scope link: present, not 10.65.0.7 dev podwold proto 87 scope link'],
    ],
    [
      'a route of Podwire that is no longer wanted',
      inPod({ routes: [...good.pod.routes, route('10.0.0.0/8')] }),
      ['ip -n pod route delete 10.0.0.0/8 via 169.254.1.1 dev eth0 proto 87'],
      ['pod route 10.0.0.0/8 via 169.254.1.1 dev eth0 proto 87: absent, not present'],
    ],
  ];

  test.each(cases)('%s', (_, observed, commands, reported) => {
    expect(diff(wanted, observed).map(formatStep)).toEqual(commands);
    const texts = differences(wanted, observed).map(
      ({ object, wanted: is, actual }) => `${object}: ${is}, not ${actual}`,
    );
    expect(texts).toEqual(reported);
  });
});

describe('the workload’s own objects stay', () => {
  test.each<readonly [string, Observed]>([
    ['an address that the node does not route to the pod', inPod({ addresses: ['10.65.0.7/32', '10.9.9.9/32'] })],
    ['a route of another protocol', inPod({ routes: [...good.pod.routes, route('10.0.0.0/8', { protocol: 4 })] })],
    [
      'a neighbour entry',
      inPod({
        neighbours: [...good.pod.neighbours, { address: '10.1.1.1', mac: '02:00:00:00:00:01', permanent: true }],
      }),
    ],
    [
      'a neighbour entry of the node',
      onHost({
        neighbours: [...good.host.neighbours, { address: '10.1.1.1', mac: '02:00:00:00:00:01', permanent: true }],
      }),
    ],
  ])('%s', (_, observed) => {
    expect(diff(wanted, observed)).toEqual([]);
  });
});

test('a MAC address that the kernel ignored at creation is set again; matching attributes are not', () => {
  const host = { ...good.host.link!, mac: '02:00:00:00:00:01' };
  expect(corrections(wanted, { host, pod: good.pod.link! }).map(formatStep)).toEqual([
    'ip link set podwa address ee:ee:ee:ee:ee:ee',
    `ip neighbour replace 10.65.0.7 dev podwa lladdr ${network.mac} nud permanent`,
  ]);
  expect(corrections(wanted, { host: good.host.link!, pod: good.pod.link! })).toEqual([]);
});
