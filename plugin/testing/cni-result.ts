// Results of ADD in every version of CNI: of one family or both, first in a chain or after another plugin.
import type { AddOutcome } from '../cni/result.js';

export type Families = 'IPv4' | 'IPv6' | 'both';
export type Place = 'first' | 'behind';

/** Addresses that ADD made. */
export const ADDRESSES: Readonly<Record<Families, readonly string[]>> = {
  IPv4: ['10.65.0.1/32'],
  IPv6: ['fd65::1/128'],
  both: ['10.65.0.1/32', 'fd65::1/128'],
};

/** The rest of the result of ADD. */
export const MADE: Pick<AddOutcome, 'hostInterface' | 'podInterface' | 'routes'> = {
  routes: [],
  hostInterface: { name: 'podw1', mac: 'ee:ee:ee:ee:ee:ee', mtu: 1450 },
  podInterface: { name: 'eth0', mac: '02:00:00:00:00:01', sandbox: '/run/netns/pod', mtu: 1450 },
};

/** The result of the plugin before it in the newest form, with unknown keys. */
export const BEFORE = {
  interfaces: [
    { name: 'br0', mac: '02:00:00:00:00:aa', mtu: 9000, pciID: '0000:00:1f.6', colour: 'red' },
    { name: 'net0', mac: '02:00:00:00:00:ab', sandbox: '/run/netns/pod', socketPath: '/run/vhost' },
  ],
  ips: [{ address: '192.168.0.2/24', gateway: '192.168.0.1', interface: 1, lease: 7 }],
  routes: [
    { dst: '192.168.0.0/16', gw: '192.168.0.1', mtu: 1400, advmss: 1360, priority: 5, table: 0, scope: 253 },
    { dst: 'fd00::/8' },
  ],
  dns: { nameservers: ['192.168.0.1'], search: ['cluster.local'] },
  later: [true, null],
} as const;

/** The same in the form of 0.1.0 and 0.2.0. */
export const BEFORE_OLD = {
  ip4: {
    ip: '192.168.0.2/24',
    gateway: '192.168.0.1',
    lease: 7,
    routes: [{ dst: '192.168.0.0/16', gw: '192.168.0.1' }],
  },
  dns: BEFORE.dns,
  later: BEFORE.later,
} as const;

const HOST = { name: 'podw1', mac: 'ee:ee:ee:ee:ee:ee' };
const POD = { name: 'eth0', mac: '02:00:00:00:00:01', sandbox: '/run/netns/pod' };
const { dns, later, routes } = BEFORE;

type Golden = Readonly<Record<Place, Readonly<Record<Families, object>>>>;

const OLD: Golden = {
  first: {
    IPv4: { ip4: { ip: '10.65.0.1/32' } },
    IPv6: { ip6: { ip: 'fd65::1/128' } },
    both: { ip4: { ip: '10.65.0.1/32' }, ip6: { ip: 'fd65::1/128' } },
  },
  // These versions have room for one address of a family: the first one.
  behind: {
    IPv4: BEFORE_OLD,
    IPv6: { ...BEFORE_OLD, ip6: { ip: 'fd65::1/128' } },
    both: { ...BEFORE_OLD, ip6: { ip: 'fd65::1/128' } },
  },
};

const MIDDLE_BEFORE = {
  interfaces: [
    { name: 'br0', mac: '02:00:00:00:00:aa', colour: 'red' },
    { name: 'net0', mac: '02:00:00:00:00:ab', sandbox: '/run/netns/pod' },
    HOST,
    POD,
  ],
  routes,
  dns,
  later,
};
const MIDDLE_IP = { version: '4', address: '192.168.0.2/24', gateway: '192.168.0.1', interface: 1, lease: 7 };

const MIDDLE: Golden = {
  first: {
    IPv4: { interfaces: [HOST, POD], ips: [{ version: '4', interface: 1, address: '10.65.0.1/32' }] },
    IPv6: { interfaces: [HOST, POD], ips: [{ version: '6', interface: 1, address: 'fd65::1/128' }] },
    both: {
      interfaces: [HOST, POD],
      ips: [
        { version: '4', interface: 1, address: '10.65.0.1/32' },
        { version: '6', interface: 1, address: 'fd65::1/128' },
      ],
    },
  },
  behind: {
    IPv4: { ...MIDDLE_BEFORE, ips: [MIDDLE_IP, { version: '4', interface: 3, address: '10.65.0.1/32' }] },
    IPv6: { ...MIDDLE_BEFORE, ips: [MIDDLE_IP, { version: '6', interface: 3, address: 'fd65::1/128' }] },
    both: {
      ...MIDDLE_BEFORE,
      ips: [
        MIDDLE_IP,
        { version: '4', interface: 3, address: '10.65.0.1/32' },
        { version: '6', interface: 3, address: 'fd65::1/128' },
      ],
    },
  },
};

/** Result for 1.0.0 and 1.1.0, which differ in the fields of interfaces. */
function newest(made: readonly object[]): Golden {
  const interfaces = [...BEFORE.interfaces, ...made];
  const [ip] = BEFORE.ips;
  return {
    first: {
      IPv4: { interfaces: made, ips: [{ interface: 1, address: '10.65.0.1/32' }] },
      IPv6: { interfaces: made, ips: [{ interface: 1, address: 'fd65::1/128' }] },
      both: {
        interfaces: made,
        ips: [
          { interface: 1, address: '10.65.0.1/32' },
          { interface: 1, address: 'fd65::1/128' },
        ],
      },
    },
    behind: {
      IPv4: { interfaces, ips: [ip, { interface: 3, address: '10.65.0.1/32' }], routes, dns, later },
      IPv6: { interfaces, ips: [ip, { interface: 3, address: 'fd65::1/128' }], routes, dns, later },
      both: {
        interfaces,
        ips: [ip, { interface: 3, address: '10.65.0.1/32' }, { interface: 3, address: 'fd65::1/128' }],
        routes,
        dns,
        later,
      },
    },
  };
}

/** Results by version, place and families, without their cniVersion. */
export const GOLDEN = {
  '0.1.0': OLD,
  '0.2.0': OLD,
  '0.3.0': MIDDLE,
  '0.3.1': MIDDLE,
  '0.4.0': MIDDLE,
  '1.0.0': newest([HOST, POD]),
  '1.1.0': newest([
    { ...HOST, mtu: 1450 },
    { ...POD, mtu: 1450 },
  ]),
} as const satisfies Readonly<Record<string, Golden>>;
