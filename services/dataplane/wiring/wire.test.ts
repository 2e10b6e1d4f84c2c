import { describe, expect, test } from 'vitest';

import { address, asWanted, changed, podNetwork } from '../testing/pods.js';
import { desired } from './network.js';
import type { Observed, ObservedLink, ObservedRoute } from './observed.js';
import { isMadeFor, movedAddresses, nothingObserved, obstacleTo, wireState } from './wire.js';

const network = podNetwork('a', { hostInterfaceName: 'podwa' });
const wanted = desired(network);
const good = asWanted(network);
const link: ObservedLink = good.host.link!;

describe('the state of the wire', () => {
  test.each<readonly [string, Observed, ReturnType<typeof wireState>]>([
    ['nothing', nothingObserved(new Map()), 'absent'],
    ['both ends', good, 'paired'],
    ['the host end alone', { ...good, pod: { ...good.pod, link: undefined } }, 'stale'],
    ['a peer that counts another index', { ...good, pod: changed(good.pod, {}, { peerIndex: 99 }) }, 'stale'],
    ['a host end whose peer has another index', { ...good, host: changed(good.host, {}, { peerIndex: 99 }) }, 'stale'],
    [
      'ends whose peers are in their own namespace',
      { ...good, pod: changed(good.pod, {}, { peerIndex: undefined }) },
      'stale',
    ],
  ])('%s', (_, observed, state) => {
    expect(wireState(observed)).toBe(state);
  });
});

describe('a host link was made for the attachment', () => {
  test.each<readonly [string, Partial<ObservedLink>, boolean]>([
    ['when its alias says so', {}, true],
    ['when it was made and not yet recorded', { alias: null, up: false }, true],
    ['not when it is up without alias', { alias: null, up: true }, false],
    ['not when it has another MAC address and no alias', { alias: null, up: false, mac: '02:00:00:00:00:01' }, false],
    ['not when its alias names another attachment', { alias: 'podwire:net/b/eth0' }, false],
    ['not when its alias is a person’s', { alias: 'uplink', up: false }, false],
    ['not when it is no veth', { kind: 'bridge' }, false],
  ])('%s', (_, change, made) => {
    expect(isMadeFor({ ...link, ...change }, network.attachment)).toBe(made);
  });
});

describe('what stands in the way of an IPv6 address', () => {
  const ipv6 = desired(podNetwork('a', { hostInterfaceName: 'podwa', addresses: [address('fd65::7')] }));
  const by = (metric: number): Observed => ({
    ...good,
    host: changed(good.host, {
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

  test.each([1, 1024])('is a route of metric %i, which goes before Podwire’s', (metric) => {
    expect(obstacleTo(ipv6, by(metric))?.failure.message).toMatch(/route to fd65::7 by br0/);
  });

  test('is no route of a higher metric', () => {
    expect(obstacleTo(ipv6, by(1025))).toBeUndefined();
  });
});

describe('addresses that led elsewhere', () => {
  const routeBy = (device: string) => good.host.routes.map((route) => ({ ...route, device }));

  test.each<readonly [string, Observed, readonly string[]]>([
    ['are none where nothing was', nothingObserved(new Map()), []],
    ['are none where everything is as wanted', good, []],
    [
      'are those by an earlier pod’s interface',
      { ...good, host: changed(good.host, { routes: routeBy('podwold') }) },
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

describe('what stands in the way', () => {
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
      { ...good, host: changed(good.host, {}, { alias: 'uplink' }) },
      'HOST_INTERFACE_TAKEN',
      /podwa was not made by Podwire .*alias "uplink"/,
    ],
    [
      'the host interface of another container',
      { ...good, host: changed(good.host, {}, { alias: 'podwire:net/b/eth0' }) },
      'HOST_INTERFACE_TAKEN',
      /podwa belongs to container b on network net/,
    ],
    ['an interface in the pod', { ...nothingObserved(new Map()), pod: good.pod }, 'INTERFACE_EXISTS', /interface eth0/],
    [
      'an interface in the pod, while the attachment’s own wire leads elsewhere',
      { ...good, pod: changed(good.pod, {}, { kind: 'macvlan' }) },
      'INTERFACE_EXISTS',
      /eth0 \(kind macvlan\)/,
    ],
    [
      'a route of somebody else’s to the address',
      { ...good, host: changed(good.host, { routes: [foreignRoute({})] }) },
      'ROUTE_TAKEN',
      /node already has a route to 10\.65\.0\.7 by cali1/,
    ],
    [
      'a blackhole',
      { ...good, host: changed(good.host, { routes: [foreignRoute({ device: null, unicast: false })] }) },
      'ROUTE_TAKEN',
      /that throws packets away/,
    ],
    [
      'a blackhole with Podwire’s own number',
      { ...good, host: changed(good.host, { routes: [foreignRoute({ device: null, unicast: false, protocol: 87 })] }) },
      'ROUTE_TAKEN',
      /that throws packets away/,
    ],
    [
      'a route by several interfaces',
      { ...good, host: changed(good.host, { routes: [foreignRoute({ device: null })] }) },
      'ROUTE_TAKEN',
      /by several interfaces/,
    ],
    [
      'a default route of the pod to nowhere',
      {
        ...good,
        pod: changed(good.pod, { routes: [foreignRoute({ destination: '0.0.0.0/0', device: null, unicast: false })] }),
      },
      'ROUTE_TAKEN',
      /pod already has a route to default that throws packets away/,
    ],
  ])('%s', (_, observed, code, message) => {
    const failure = obstacleTo(wanted, observed)?.failure;
    expect(failure?.code).toBe(code);
    expect(failure?.message).toMatch(message);
  });

  test.each<readonly [string, Observed]>([
    ['nothing there', nothingObserved(new Map())],
    ['everything as wanted', good],
    ['the attachment’s wire with its peer elsewhere', { ...good, pod: { ...good.pod, link: undefined } }],
    [
      'a route to the address by an earlier pod of Podwire’s',
      {
        ...good,
        host: changed(good.host, { routes: [foreignRoute({ device: 'podwb', deviceAlias: 'podwire:net/b/eth0' })] }),
      },
    ],
    [
      'a route to an address that another node had borrowed',
      { ...good, host: changed(good.host, { routes: [foreignRoute({ device: 'vxlan4.podwire', protocol: 87 })] }) },
    ],
    [
      'a route of somebody else’s that Podwire’s goes before',
      { ...good, host: changed(good.host, { routes: [foreignRoute({ metric: 1 })] }) },
    ],
    [
      'a default route of the pod by another interface',
      { ...good, pod: changed(good.pod, { routes: [foreignRoute({ destination: '0.0.0.0/0', device: 'net1' })] }) },
    ],
  ])('not: %s', (_, observed) => {
    expect(obstacleTo(wanted, observed)).toBeUndefined();
  });
});
