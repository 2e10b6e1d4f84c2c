import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parsePrefix, splitCidr } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { chooseAddress, describeMethod, isNodeInterface, readAddressMethod } from './address-method.js';
import type { NodeNetworkState } from './links.js';

test.each([
  ['auto', 4, 'auto'],
  ['none', 6, 'none'],
  ['192.0.2.7/24', 4, '192.0.2.7/24'],
  ['2001:db8::7/64', 6, '2001:db8::7/64'],
  ['interface=eth.*, wlan0', 4, 'interface=eth.*,wlan0'],
  ['skip-interface=docker0', 4, 'skip-interface=docker0'],
  ['cidr=10.0.0.0/8, 192.0.2.0/24', 4, 'cidr=10.0.0.0/8,192.0.2.0/24'],
  ['can-reach=8.8.8.8', 4, 'can-reach=8.8.8.8'],
] as const)('%s of IPv%i is read, and described as %s', (text, family, described) => {
  const read = readAddressMethod(text, family);
  expect(read.ok ? describeMethod(read.method) : read.fault).toBe(described);
});

test.each([
  ['', 4, 'must be auto, none'],
  ['Auto', 4, 'must be auto, none'],
  ['192.0.2.7', 4, 'must be auto, none'],
  ['192.0.2.7/24', 6, 'must be an IPv6 address'],
  ['first-found', 4, 'must be auto, none'],
  ['interface=', 4, 'must be auto, none'],
  ['interface=(', 4, 'has "(", which must be a regular expression'],
  ['interface=eth0,', 4, 'has "", which must be a regular expression'],
  ['cidr=10.0.0.1/8', 4, 'has "10.0.0.1/8": has host bits set'],
  ['cidr=fd00::/8', 4, 'has "fd00::/8", which must be an IPv4 prefix'],
  ['can-reach=example.org', 4, 'has "example.org", which must be an IPv4 address'],
  ['can-reach=8.8.8.8', 6, 'has "8.8.8.8", which must be an IPv6 address'],
] as const)('%j of IPv%i is refused: %s', (text, family, fault) => {
  const read = readAddressMethod(text, family);
  expect(read.ok ? 'read' : read.fault).toContain(fault);
});

/** `eth0 192.0.2.7/24 2001:db8::7/64`: an interface with its addresses; `!` before a temporary, `~` a dynamic, `-` a deprecated one; `-` before a name: down. */
function network(links: readonly string[], routes: readonly string[] = []): NodeNetworkState {
  const parsed = links.map((line, at) => {
    const [word = '', ...addresses] = line.split(' ');
    return { index: at + 1, name: word.replace(/^-/, ''), up: !word.startsWith('-'), addresses };
  });
  return {
    links: parsed.map(({ index, name, up }) => ({ index, name, up, mac: null })),
    addresses: parsed.flatMap(({ index, addresses }) =>
      addresses.map((text) => ({
        ...(splitCidr(text.replace(/^[!~-]/, '')) ?? expect.unreachable(text)),
        linkIndex: index,
        isUsable: !text.startsWith('!'),
        lifetime: text.startsWith('~')
          ? ('dynamic' as const)
          : text.startsWith('-')
            ? ('deprecated' as const)
            : ('permanent' as const),
      })),
    ),
    routes: routes.map((line) => {
      const {
        to = '',
        dev,
        src,
        metric = '0',
      } = /^(?<to>\S+) dev (?<dev>\S+)( src (?<src>\S+))?( metric (?<metric>\d+))?$/.exec(line)!.groups!;
      const destination = parsePrefix(to);
      return {
        destination: destination.ok ? destination.prefix : expect.unreachable(to),
        linkIndex: parsed.find(({ name }) => name === dev)!.index,
        isOnLink: true,
        source: src === undefined ? undefined : splitCidr(`${src}/0`)?.address,
        metric: Number(metric),
      };
    }),
  };
}

function chosen(setting: string, family: Family, state: NodeNetworkState, registered?: Address): string {
  const read = readAddressMethod(setting, family);
  const found = read.ok ? chooseAddress(read.method, family, state, registered) : expect.unreachable(read.fault);
  return found ? `${formatAddress(found.address)}/${found.length}` : 'none';
}

const TWO = ['lo 127.0.0.1/8 ::1/128', 'eth0 192.0.2.7/24 192.0.2.8/24', 'eth1 198.51.100.7/24 2001:db8::7/64'];
const PODS = [
  'podw1 169.254.1.1/32 10.65.0.3/32',
  'vxlan4.podwire 10.65.0.1/32',
  'docker0 172.17.0.1/16',
  'cni0 10.88.0.1/16',
];

describe('IPv4', () => {
  test.each<[string, string, NodeNetworkState, string]>([
    ['the interface with the default route', 'auto', network(TWO, ['0.0.0.0/0 dev eth1']), '198.51.100.7/24'],
    [
      'the default route with the lowest metric',
      'auto',
      network(TWO, ['0.0.0.0/0 dev eth1 metric 200', '0.0.0.0/0 dev eth0 metric 100']),
      '192.0.2.7/24',
    ],
    ['its source address', 'auto', network(TWO, ['0.0.0.0/0 dev eth0 src 192.0.2.8']), '192.0.2.8/24'],
    [
      'its first address, where the source is none of them',
      'auto',
      network(TWO, ['0.0.0.0/0 dev eth0 src 192.0.2.99']),
      '192.0.2.7/24',
    ],
    ['the first interface with one, without a default route', 'auto', network(TWO), '192.0.2.7/24'],
    [
      'the next one, where the interface of the default route has none',
      'auto',
      network(['eth0', 'eth1 192.0.2.7/24'], ['0.0.0.0/0 dev eth0']),
      '192.0.2.7/24',
    ],
    ['none of pods, tunnels and container engines', 'auto', network([...PODS, ...TWO]), '192.0.2.7/24'],
    [
      'none of them though the default route is theirs',
      'auto',
      network([...PODS, ...TWO], ['0.0.0.0/0 dev docker0']),
      '192.0.2.7/24',
    ],
    ['nothing where there is nothing else', 'auto', network(PODS, ['0.0.0.0/0 dev docker0']), 'none'],
    [
      'none of an interface that is off',
      'auto',
      network(['-eth0 192.0.2.7/24', 'eth1 198.51.100.7/24'], ['0.0.0.0/0 dev eth0']),
      '198.51.100.7/24',
    ],
    ['none that is link-local', 'auto', network(['eth0 169.254.7.7/16 192.0.2.7/24']), '192.0.2.7/24'],
    ['none that does not last', 'auto', network(['eth0 !192.0.2.6/24 192.0.2.7/24']), '192.0.2.7/24'],
    ['nothing', 'none', network(TWO), 'none'],
    ['the given one, wherever it is', '203.0.113.9/28', network(TWO), '203.0.113.9/28'],
    ['the first interface of a name', 'interface=eth1', network(TWO), '198.51.100.7/24'],
    ['the first pattern that leads to an address', 'interface=wlan0, eth1,eth.*', network(TWO), '198.51.100.7/24'],
    ['an engine’s interface where it is asked for', 'interface=docker', network([...PODS, ...TWO]), '172.17.0.1/16'],
    ['never Podwire’s own', 'interface=podw,vxlan', network([...PODS, ...TWO]), 'none'],
    ['a name that is not skipped', 'skip-interface=^eth0$,wlan', network([...PODS, ...TWO]), '198.51.100.7/24'],
    ['nothing when all is skipped', 'skip-interface=eth', network([...PODS, ...TWO]), 'none'],
    ['the first in a range', 'cidr=203.0.113.0/24, 198.51.100.0/24', network(TWO), '198.51.100.7/24'],
    ['a second address in a range', 'cidr=192.0.2.8/32', network(TWO), '192.0.2.8/24'],
    ['none of a pod in a range', 'cidr=10.0.0.0/8', network([...PODS, ...TWO]), 'none'],
    [
      'by the longest route',
      'can-reach=203.0.113.1',
      network(TWO, ['0.0.0.0/0 dev eth0', '203.0.113.0/24 dev eth1', '203.0.0.0/16 dev eth0']),
      '198.51.100.7/24',
    ],
    ['by the default route', 'can-reach=8.8.8.8', network(TWO, ['0.0.0.0/0 dev eth1']), '198.51.100.7/24'],
    ['nothing where no route leads', 'can-reach=8.8.8.8', network(TWO, ['203.0.113.0/24 dev eth1']), 'none'],
  ])('%s (%s)', (_, setting, state, expected) => {
    expect(chosen(setting, 4, state)).toBe(expected);
  });
});

describe('IPv6', () => {
  const links = ['lo ::1/128', 'eth0 fe80::1/64 fd00::7/64 2001:db8::7/64 !2001:db8::1/64', 'eth1 2001:db8:1::7/64'];

  test.each<[string, NodeNetworkState, string]>([
    ['auto', network(links, ['::/0 dev eth1']), '2001:db8:1::7/64'],
    ['auto', network(links, ['::/0 dev eth0 src fd00::7']), 'fd00::7/64'],
    ['auto', network(links), '2001:db8::7/64'],
    ['auto', network(['eth0 fe80::1/64']), 'none'],
    ['cidr=fd00::/8', network(links), 'fd00::7/64'],
    ['can-reach=2001:db8:1::1', network(links, ['2001:db8:1::/64 dev eth1', '::/0 dev eth0']), '2001:db8:1::7/64'],
  ])('%s: %#', (setting, state, expected) => {
    expect(chosen(setting, 6, state)).toBe(expected);
  });

  test('does not depend on the kernel’s order of addresses', () => {
    const [one, other] = [
      ['2001:db8::9/64', '2001:db8::7/64'],
      ['2001:db8::7/64', '2001:db8::9/64'],
    ];
    expect(chosen('auto', 6, network([`eth0 ${one.join(' ')}`]))).toBe(
      chosen('auto', 6, network([`eth0 ${other.join(' ')}`])),
    );
  });
});

describe('an address of a service on the node’s interface', () => {
  const chosenOf = (method: string, links: readonly string[], registered?: string) => {
    const read = readAddressMethod(method, links[0]?.includes(':') ? 6 : 4);
    const family = links[0]?.includes(':') ? 6 : 4;
    const known = registered === undefined ? undefined : splitCidr(`${registered}/0`)?.address;
    const found = read.ok ? chooseAddress(read.method, family, network(links), known) : expect.unreachable(read.fault);
    return found && `${formatAddress(found.address)}/${found.length}`;
  };

  test.each(['auto', 'interface=eth0', 'cidr=192.0.2.0/24'])(
    'is not chosen by %s while there is one with a subnet',
    (method) => {
      expect(chosenOf(method, ['eth0 192.0.2.100/32 192.0.2.7/24'])).toBe('192.0.2.7/24');
      expect(chosenOf(method, ['eth0 192.0.2.100/32'])).toBe('192.0.2.100/32');
    },
  );

  test('is not chosen for IPv6, though it is lower', () => {
    expect(chosenOf('auto', ['eth0 2001:db8::1/128 2001:db8::7/64'])).toBe('2001:db8::7/64');
  });

  test('with a subnet leaves the registered one, which stays as long as the method could choose it', () => {
    const both = ['eth0 192.0.2.100/24 192.0.2.7/24'];
    expect(chosenOf('auto', both, '192.0.2.7')).toBe('192.0.2.7/24');
    expect(chosenOf('cidr=192.0.2.96/27', both, '192.0.2.7')).toBe('192.0.2.100/24');
    expect(chosenOf('auto', ['eth0 192.0.2.100/24', 'eth1 192.0.2.7/24'], '192.0.2.7')).toBe('192.0.2.7/24');
    expect(chosenOf('interface=eth0,eth1', ['eth0 192.0.2.100/24', 'eth1 192.0.2.7/24'], '192.0.2.7')).toBe(
      '192.0.2.100/24',
    );
    expect(chosenOf('auto', ['eth0 192.0.2.100/24'], '192.0.2.7')).toBe('192.0.2.100/24');
  });

  test.each([
    [4, 'eth0 -192.0.2.5/24 ~192.0.2.6/24 192.0.2.7/24 192.0.2.4/32', '192.0.2.7/24'],
    [4, 'eth0 192.0.2.4/32 -192.0.2.5/24 ~192.0.2.6/24', '192.0.2.6/24'],
    [4, 'eth0 192.0.2.4/32 -192.0.2.5/24', '192.0.2.5/24'],
    [6, 'eth0 ~2001:db8::5/64 2001:db8::7/64 -2001:db8::4/64', '2001:db8::7/64'],
    [6, 'eth0 -2001:db8::4/64 ~2001:db8::5/64', '2001:db8::5/64'],
  ] as const)('IPv%i: a permanent one comes before a dynamic and a deprecated one (%s)', (family, link, expected) => {
    expect(chosen('auto', family, network([link]))).toBe(expected);
  });

  test.each([
    [4, '192.0.2.202/32 192.0.2.12/24 192.0.2.13/24', '192.0.2.202', '192.0.2.12/24'],
    [4, '192.0.2.202/24 192.0.2.12/24', '192.0.2.202', '192.0.2.12/24'],
    [4, '192.0.2.202/32 192.0.2.13/24', '192.0.2.202', '192.0.2.13/24'],
    [6, '2001:db8::2/128 2001:db8::12/64 2001:db8::5/64', '2001:db8::2', '2001:db8::12/64'],
    [6, '2001:db8::2/64 2001:db8::12/64', '2001:db8::2', '2001:db8::12/64'],
  ] as const)(
    'IPv%i: as the source of the default route leaves the registered one (%s)',
    (family, own, src, expected) => {
      const to = { 4: '0.0.0.0/0', 6: '::/0' }[family];
      const state = network([`eth0 ${own}`], [`${to} dev eth0 src ${src}`]);
      const registered = splitCidr({ 4: '192.0.2.12/0', 6: '2001:db8::12/0' }[family])?.address;
      for (const method of ['auto', { 4: 'can-reach=203.0.113.1', 6: 'can-reach=2001:db8:f::1' }[family]])
        expect(chosen(method, family, state, registered)).toBe(expected);
    },
  );

  test('that was registered while there was no other does not stay', () => {
    expect(chosenOf('auto', ['eth0 192.0.2.100/32 192.0.2.7/24'], '192.0.2.100')).toBe('192.0.2.7/24');
  });
});

test.each([
  ['eth0', true],
  ['enp3s0', true],
  ['bond0', true],
  ['br0', true],
  ['br-lan', true],
  ['lan0', true],
  ['br-ex', true],
  ['vmbr0', true],
  ['ovsbr0', true],
  ['local0', true],
  ['bond0.100', true],
  ['team0', true],
  ['ppp0', true],
  ['wlp3s0', true],
  ['ens192', true],
  ['weave', false],
  ['kube-bridge', false],
  ['antrea-gw0', false],
  ['ovn-k8s-mp0', false],
  ['podman0', false],
  ['lxdbr0', false],
  ['tailscale0', false],
  ['wg0', false],
  ['wgnet', false],
  ['docker_gwbridge', false],
  ['cni-br', false],
  ['br-int', false],
  ['br-tun', false],
  ['ovs-system', false],
  ['genev_sys_6081', false],
  ['vxlan_sys_4789', false],
  ['tun0', false],
  ['tunl0', false],
  ['tap0', false],
  ['tap3f2a1b', false],
  ['nordlynx', false],
  ['wg-mesh', false],
  ['wt0', false],
  ['ztabcdef12', false],
  ['vmnet8', false],
  ['cbr0', false],
  ['flannel.1', false],
  ['nodelocaldns', false],
  ['lo', false],
  ['podw0123456789a', false],
  ['vxlan4.podwire', false],
  ['ipip.podwire', false],
  ['br-0123456789ab', false],
  ['docker0', false],
  ['cni0', false],
  ['kube-ipvs0', false],
  ['cali12345678901', false],
  ['vxlan.calico', false],
  ['vethabc', false],
])('%s is an interface of the node: %s', (name, expected) => {
  expect(isNodeInterface({ index: 1, name, up: true, mac: null })).toBe(expected);
});
