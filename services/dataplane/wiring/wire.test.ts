import { describe, expect, test } from 'vitest';

import { address, matchingObservation, withChanges, podNetwork } from '../testing/pods.js';
import { wantedState } from './network.js';
import type { Observed, ObservedLink, ObservedRoute } from './observed.js';
import { isMadeFor, movedAddresses, emptyObservation, findObstacle, wireState } from './wire.js';

const network = podNetwork('a', { hostInterfaceName: 'podwa' });
const wanted = wantedState(network);
const good = matchingObservation(network);
const link: ObservedLink = good.host.link!;

describe('the state of the wire', () => {
  test.each<readonly [string, Observed, ReturnType<typeof wireState>]>([
    ['nothing', emptyObservation(new Map()), 'absent'],
    ['both ends', good, 'paired'],
    ['the host end alone', { ...good, pod: { ...good.pod, link: undefined } }, 'stale'],
    ['a peer that counts another index', { ...good, pod: withChanges(good.pod, {}, { peerIndex: 99 }) }, 'stale'],
    [
      'a host end whose peer has another index',
      { ...good, host: withChanges(good.host, {}, { peerIndex: 99 }) },
      'stale',
    ],
    [
      'ends whose peers are in their own namespace',
      { ...good, pod: withChanges(good.pod, {}, { peerIndex: undefined }) },
      'stale',
    ],
  ])('%s', (_, observed, state) => {
    expect(wireState(observed)).toBe(state);
  });
});

describe('a host link was made for the attachment', () => {
  test.each<readonly [string, Partial<ObservedLink>, boolean]>([
    ['when its alias says so', {}, true],
    ['when it was created and has no alias yet', { alias: null, up: false }, true],
    ['not when it is up without alias', { alias: null, up: true }, false],
    ['not when it has another MAC address and no alias', { alias: null, up: false, mac: '02:00:00:00:00:01' }, false],
    ['not when its alias names another attachment', { alias: 'podwire:net/b/eth0' }, false],
    ['not when an operator set its alias', { alias: 'uplink', up: false }, false],
    ['not when it is no veth', { kind: 'bridge' }, false],
  ])('%s', (_, change, made) => {
    expect(isMadeFor({ ...link, ...change }, network.attachment)).toBe(made);
  });
});

describe('the obstacle to an IPv6 address', () => {
  const ipv6 = wantedState(podNetwork('a', { hostInterfaceName: 'podwa', addresses: [address('fd65::7')] }));
  const by = (metric: number): Observed => ({
    ...good,
    host: withChanges(good.host, {
      routes: [
        {
          destination: 'fd65::7/128',
          device: 'br0',
          deviceAlias: null,
          gateway: undefined,
          metric,
          scope: 'global',
          protocol: 3,
          unicast: true,
        },
      ],
    }),
  });

  test.each([1, 1024])('is a route of metric %i, which precedes Podwire’s', (metric) => {
    expect(findObstacle(ipv6, by(metric))?.failure.message).toMatch(/route to fd65::7 by br0/);
  });

  test('is no route of a higher metric', () => {
    expect(findObstacle(ipv6, by(1025))).toBeUndefined();
  });
});

describe('moved addresses', () => {
  const routeBy = (device: string) => good.host.routes.map((route) => ({ ...route, device }));

  test.each<readonly [string, Observed, readonly string[]]>([
    ['are none when nothing existed', emptyObservation(new Map()), []],
    ['are none when everything matches', good, []],
    [
      'go by an earlier pod’s interface',
      { ...good, host: withChanges(good.host, { routes: routeBy('podwold') }) },
      ['10.65.0.7/32 podwold'],
    ],
    [
      'are all of a wire whose peer is elsewhere',
      { ...good, pod: { ...good.pod, link: undefined } },
      ['10.65.0.7/32 podwa'],
    ],
  ])('%s', (_, observed, moved) => {
    expect(movedAddresses(wanted, observed).map(({ destination, device }) => `${destination} ${device}`)).toEqual(
      moved,
    );
  });
});

describe('an obstacle', () => {
  const foreignRoute = (rest: Partial<ObservedRoute>): ObservedRoute => ({
    destination: '10.65.0.7/32',
    device: 'cali1',
    deviceAlias: null,
    gateway: undefined,
    metric: 0,
    scope: 'link',
    protocol: 3,
    unicast: true,
    ...rest,
  });

  test.each<readonly [string, Observed, string, RegExp]>([
    [
      'a foreign host interface',
      { ...good, host: withChanges(good.host, {}, { alias: 'uplink' }) },
      'HOST_INTERFACE_TAKEN',
      /podwa was not created by Podwire .*alias "uplink"/,
    ],
    [
      'the host interface of another container',
      { ...good, host: withChanges(good.host, {}, { alias: 'podwire:net/b/eth0' }) },
      'HOST_INTERFACE_TAKEN',
      /podwa belongs to container b on network net/,
    ],
    [
      'an interface in the pod',
      { ...emptyObservation(new Map()), pod: good.pod },
      'INTERFACE_EXISTS',
      /interface eth0/,
    ],
    [
      'an interface in the pod, while the attachment’s own wire leads elsewhere',
      { ...good, pod: withChanges(good.pod, {}, { kind: 'macvlan' }) },
      'INTERFACE_EXISTS',
      /eth0 \(kind macvlan\)/,
    ],
    [
      'a foreign route to the address',
      { ...good, host: withChanges(good.host, { routes: [foreignRoute({})] }) },
      'ROUTE_TAKEN',
      /node already has a route to 10\.65\.0\.7 by cali1/,
    ],
    [
      'a blackhole',
      { ...good, host: withChanges(good.host, { routes: [foreignRoute({ device: null, unicast: false })] }) },
      'ROUTE_TAKEN',
      /that drops packets/,
    ],
    [
      'a blackhole with Podwire’s own number',
      {
        ...good,
        host: withChanges(good.host, { routes: [foreignRoute({ device: null, unicast: false, protocol: 87 })] }),
      },
      'ROUTE_TAKEN',
      /that drops packets/,
    ],
    [
      'a route by several interfaces',
      { ...good, host: withChanges(good.host, { routes: [foreignRoute({ device: null })] }) },
      'ROUTE_TAKEN',
      /by several interfaces/,
    ],
    [
      'a default route of the pod to nowhere',
      {
        ...good,
        pod: withChanges(good.pod, {
          routes: [foreignRoute({ destination: '0.0.0.0/0', device: null, unicast: false })],
        }),
      },
      'ROUTE_TAKEN',
      /pod already has a route to default that drops packets/,
    ],
  ])('%s', (_, observed, code, message) => {
    const failure = findObstacle(wanted, observed)?.failure;
    expect(failure?.code).toBe(code);
    expect(failure?.message).toMatch(message);
  });

  test.each<readonly [string, Observed]>([
    ['an empty state', emptyObservation(new Map())],
    ['a matching state', good],
    ['the attachment’s wire with its peer elsewhere', { ...good, pod: { ...good.pod, link: undefined } }],
    [
      'a route to the address by an earlier pod of Podwire’s',
      {
        ...good,
        host: withChanges(good.host, {
          routes: [foreignRoute({ device: 'podwb', deviceAlias: 'podwire:net/b/eth0' })],
        }),
      },
    ],
    [
      'a route to an address that another node had borrowed',
      { ...good, host: withChanges(good.host, { routes: [foreignRoute({ device: 'vxlan4.podwire', protocol: 87 })] }) },
    ],
    [
      'a foreign route that Podwire’s precedes',
      { ...good, host: withChanges(good.host, { routes: [foreignRoute({ metric: 1 })] }) },
    ],
    [
      'a default route of the pod by another interface',
      { ...good, pod: withChanges(good.pod, { routes: [foreignRoute({ destination: '0.0.0.0/0', device: 'net1' })] }) },
    ],
  ])('not: %s', (_, observed) => {
    expect(findObstacle(wanted, observed)).toBeUndefined();
  });
});
