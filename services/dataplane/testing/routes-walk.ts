import fc from 'fast-check';

import type { NodeRoute, VxlanPeer, WantedNode, WantedVxlan } from '../routes/wanted.js';
import { blackhole, unicast, vxlan } from './kernels.js';
import { routesOf } from './routes.js';

/** A step of a random walk: a wanted state, a command of another program, or a fault of the loop. */
export type WalkStep =
  | { readonly what: 'want'; readonly wanted: WantedNode }
  | { readonly what: 'command'; readonly command: string }
  /** `deafen`: notifications are lost until the next rest; `overrun`: they are lost, and the loss is reported. */
  | { readonly what: 'deafen' | 'overrun' | 'restart' | 'rest' | 'break watches' }
  | { readonly what: 'refuse'; readonly operation: 'any step' | 'observe'; readonly after: number };

const four = vxlan;
const six: WantedVxlan = { ...vxlan, name: 'vxlan6.podwire', local: 'fd00::1', mtuBytes: 1430, address: 'fd65::1/128' };

const vxlanOf = (base: WantedVxlan, addresses: readonly (string | undefined)[]): fc.Arbitrary<WantedVxlan> =>
  fc
    .record({
      vni: fc.constantFrom(4096, 4096, 4096, 5),
      mac: fc.constantFrom('66:00:00:00:00:01', '66:00:00:00:00:0b'),
      mtuBytes: fc.constantFrom(1400, 1300),
      parent: fc.constantFrom('up0', 'up0', undefined),
      address: fc.constantFrom(base.address, base.address, ...addresses),
    })
    .map((changes) => ({ ...base, ...changes }));

const PEERS: readonly VxlanPeer[] = [2, 3, 4].flatMap((number) => [
  {
    device: four.name,
    tunnelAddress: `10.65.${number}.1`,
    mac: `66:00:00:00:00:0${number}`,
    nodeAddress: `10.0.0.${number}`,
  },
  {
    device: six.name,
    tunnelAddress: `fd65:${number}::1`,
    mac: `66:00:00:00:01:0${number}`,
    nodeAddress: `fd00::${number}`,
  },
]);

/** Every route that a block of a node may have. */
function variants(number: number): readonly (readonly NodeRoute[])[] {
  const block = `10.65.${number}.0/26`;
  const block6 = `fd65:${number}::/122`;
  return [
    [unicast(block, `10.65.${number}.1`), unicast(block, `10.0.0.${number}`, 'up0'), blackhole(block)],
    [unicast(block6, `fd65:${number}::1`, six.name), unicast(block6, `fd00::${number}`, 'up0'), blackhole(block6)],
    [unicast(`10.65.${number}.1/32`, undefined), unicast(`10.65.${number}.1/32`, `10.0.0.${number}`, 'up0')],
  ];
}

const needs = (route: NodeRoute, devices: readonly string[]) =>
  route.device === undefined || devices.includes(route.device);

const wantedStates: fc.Arbitrary<WantedNode> = fc
  .record({
    tunnels: fc.tuple(
      fc.option(vxlanOf(four, ['10.65.0.2/32', undefined]), { nil: undefined }),
      fc.option(vxlanOf(six, ['fd65::2/128', undefined]), { nil: undefined }),
    ),
    routes: fc.tuple(
      ...[2, 3, 4].flatMap(variants).map((routes) => fc.option(fc.constantFrom(...routes), { nil: undefined })),
    ),
    peers: fc.subarray([...PEERS]),
    isForwarding: fc.boolean(),
  })
  .map(({ tunnels, routes, peers, isForwarding }) => {
    const made = tunnels.filter((tunnel) => tunnel !== undefined);
    const devices = ['up0', ...made.map(({ name }) => name)];
    return {
      tunnels: made,
      routes: routesOf(
        ...routes
          .filter((route) => route !== undefined && needs(route, devices))
          .filter((route) => route !== undefined),
      ),
      peers: peers.filter(({ device }) => devices.includes(device)),
      sysctls: isForwarding ? [{ key: ['net', 'ipv4', 'ip_forward'], value: '1' }] : [],
      conditions: [],
    };
  });

/** Commands that restore `up0` from any state. The kernel refuses some when they are not needed. */
export const RESTORE: readonly string[] = [
  'ip link add up0 type bridge',
  'ip link set up0 mtu 1500',
  'ip link set up0 up',
  'ip address add 10.0.0.1/24 dev up0',
  'ip address add fd00::1/64 dev up0 nodad',
];

const FOREIGN_COMMANDS: readonly string[] = [
  ...[2, 3, 4].flatMap((number) => [
    `ip route delete 10.65.${number}.0/26 proto 87`,
    `ip route delete fd65:${number}::/122 proto 87`,
    `ip route replace 10.65.${number}.0/26 via 10.0.0.9 dev up0 proto 87`,
    `ip route append 10.65.${number}.0/26 via 10.0.0.8 dev up0 proto 87`,
    `ip route add 10.65.${number}.0/26 via 10.0.0.7 dev up0 proto 87 metric 5`,
    `ip route add blackhole fd65:${number}::/122 proto 87 metric 5`,
    `ip route add blackhole 10.65.${number + 40}.0/26 proto 87`,
    `ip route replace blackhole fd65:${number}::/122 proto 87`,
    `ip route add blackhole 10.65.${number}.0/26 proto 4`,
    `ip route replace blackhole 10.65.${number}.0/26 proto 4`,
    `ip route delete 10.65.${number}.0/26 proto 4`,
    `ip neighbour delete 10.65.${number}.1 dev vxlan4.podwire`,
    `ip neighbour replace 10.65.${number}.1 dev vxlan4.podwire lladdr 66:00:00:00:00:1${number} nud permanent`,
    `bridge fdb delete 66:00:00:00:00:0${number} dev vxlan4.podwire dst 10.0.0.${number}`,
    `bridge fdb append 66:00:00:00:00:1${number} dev vxlan4.podwire dst 10.0.0.${number}`,
    `bridge fdb replace 66:00:00:00:00:0${number} dev vxlan4.podwire dst 10.0.0.9`,
  ]),
  ...['vxlan4.podwire', 'vxlan6.podwire', 'up0'].flatMap((name) => [
    `ip link set ${name} down`,
    `ip link set ${name} up`,
    `ip link delete ${name}`,
  ]),
  'ip link set vxlan4.podwire address 66:00:00:00:00:0c',
  'ip link set vxlan6.podwire mtu 1290',
  'ip address delete 10.65.0.1/32 dev vxlan4.podwire',
  'ip address add 10.65.0.77/32 dev vxlan4.podwire',
  'ip address add fd65::77/128 dev vxlan6.podwire',
  'ip address delete 10.0.0.1/24 dev up0',
  'sysctl -w net.ipv4.ip_forward=0',
  ...RESTORE,
  ...RESTORE,
];

export const commandSteps: fc.Arbitrary<WalkStep> = fc
  .constantFrom(...FOREIGN_COMMANDS)
  .map((command) => ({ what: 'command', command }));

export const wantedSteps: fc.Arbitrary<WalkStep> = wantedStates.map((wanted) => ({ what: 'want', wanted }));

export const restSteps: fc.Arbitrary<WalkStep> = fc.constant({ what: 'rest' });

export const faultSteps: fc.Arbitrary<WalkStep> = fc.oneof(
  fc.constantFrom<WalkStep>({ what: 'deafen' }, { what: 'overrun' }, { what: 'restart' }, { what: 'break watches' }),
  fc.record({
    what: fc.constant('refuse' as const),
    operation: fc.constantFrom('any step' as const, 'observe' as const),
    after: fc.nat({ max: 5 }),
  }),
);

/** Commands at the end of a walk that remove foreign routes, which Podwire must have kept. */
export const FOREIGN_CLEARED: readonly string[] = [2, 3, 4].map(
  (number) => `ip route delete 10.65.${number}.0/26 proto 4`,
);

/** Commands that create permanent foreign objects. */
export const FOREIGN: readonly string[] = [
  'ip route add blackhole 10.77.0.0/16 proto 4',
  'ip route add blackhole 10.65.1.0/26 proto 4 metric 3',
  'ip link add vxlan.other type vxlan id 9 dstport 4790 local 10.0.0.1 nolearning',
];
