import { MAX_CONTAINER_ID_BYTES, MAX_NETWORK_BYTES } from '@podwire/shared/attachment/attachment';
import { formatAddress } from '@podwire/shared/net/address';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { address, BY_FAMILY, podNetwork } from '../testing/pods.js';
import { diff } from './diff.js';
import { aliasOf, attachmentOfAlias, wantedState, GATEWAY, HOST_LINK_LOCAL, linkLocal } from './network.js';
import { formatStep } from './step.js';
import { emptyObservation } from './wire.js';

const NOTHING = emptyObservation(new Map([['net/ipv4/ip_forward', '1']]));

const commands = (...args: Parameters<typeof podNetwork>) =>
  diff(wantedState(podNetwork(...args)), NOTHING).map(formatStep);

describe('a new pod', () => {
  test('is wired by these commands, in this order', () => {
    const name = 'podwtest';
    expect(commands('a', { hostInterfaceName: name, mac: '02:00:00:00:00:07' })).toEqual([
      'ip link add podwtest address ee:ee:ee:ee:ee:ee mtu 1500 type veth peer name eth0 address 02:00:00:00:00:07 mtu 1500 netns pod',
      'ip link set podwtest alias "podwire:net/a/eth0" up',
      'sysctl -w net.ipv4.conf.podwtest.route_localnet=1',
      'sysctl -w net.ipv4.neigh.podwtest.proxy_delay=0',
      'sysctl -w net.ipv4.conf.podwtest.proxy_arp=1',
      'sysctl -w net.ipv4.conf.podwtest.forwarding=1',
      'sysctl -w net.ipv4.conf.podwtest.rp_filter=1',
      'sysctl -w net.ipv6.conf.podwtest.disable_ipv6=1',
      'sysctl -w net.ipv6.conf.podwtest.accept_ra=0',
      'ip -n pod link set eth0 up',
      'ip -n pod address add 10.65.0.7/32 dev eth0',
      'ip -n pod neighbour replace 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
      'ip -n pod route add 169.254.1.1 dev eth0 proto 87 scope link',
      'ip -n pod route add default via 169.254.1.1 dev eth0 proto 87',
      'ip netns exec pod sysctl -w net.ipv4.ip_forward=0',
      'ip neighbour replace 10.65.0.7 dev podwtest lladdr 02:00:00:00:00:07 nud permanent',
      'ip route add 10.65.0.7 dev podwtest proto 87 scope link',
    ]);
  });

  test.each([
    ['none', [], '1'],
    ['some of IPv4', [{ family: 4, value: 0x0a63_0000n, length: 16 }], '0'],
    ['some of IPv6 alone', [{ family: 6, value: 0xfd99n << 112n, length: 64 }], '1'],
  ] as const)(
    'with additional source prefixes (%s) has an interface with this reverse-path filter',
    (_, prefixes, value) => {
      const given = { hostInterfaceName: 'podwtest', ...BY_FAMILY['both families'], sourcePrefixes: prefixes };
      const filters = commands('a', given).filter((command) => command.includes('rp_filter'));
      expect(filters).toEqual([`sysctl -w net.ipv4.conf.podwtest.rp_filter=${value}`]);
    },
  );

  test('of IPv6 is wired by these', () => {
    const rest = { hostInterfaceName: 'podwtest', mac: '02:00:00:00:00:07', ipForwarding: true };
    expect(commands('a', { ...rest, ...BY_FAMILY.IPv6 })).toEqual([
      'ip link add podwtest address ee:ee:ee:ee:ee:ee mtu 1500 type veth peer name eth0 address 02:00:00:00:00:07 mtu 1500 netns pod',
      'ip link set podwtest alias "podwire:net/a/eth0" up',
      'sysctl -w net.ipv4.conf.podwtest.rp_filter=1',
      'sysctl -w net.ipv6.conf.podwtest.disable_ipv6=0',
      'sysctl -w net.ipv6.conf.podwtest.addr_gen_mode=0',
      'sysctl -w net.ipv6.conf.podwtest.accept_dad=0',
      'sysctl -w net.ipv6.conf.podwtest.proxy_ndp=1',
      'sysctl -w net.ipv6.conf.podwtest.forwarding=1',
      'sysctl -w net.ipv6.conf.podwtest.accept_ra=0',
      'ip address replace fe80::ecee:eeff:feee:eeee/64 dev podwtest nodad',
      'ip netns exec pod sysctl -w net.ipv6.conf.lo.disable_ipv6=0',
      'ip netns exec pod sysctl -w net.ipv6.conf.default.disable_ipv6=0',
      'ip netns exec pod sysctl -w net.ipv6.conf.all.disable_ipv6=0',
      'ip netns exec pod sysctl -w net.ipv6.conf.eth0.disable_ipv6=0',
      'ip netns exec pod sysctl -w net.ipv6.conf.eth0.accept_dad=0',
      'ip -n pod link set eth0 up',
      'ip -n pod address add fd65::7/128 dev eth0 nodad',
      'ip -n pod neighbour replace fe80::ecee:eeff:feee:eeee dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
      'ip -n pod route add default via fe80::ecee:eeff:feee:eeee dev eth0 proto 87 metric 1024',
      'ip netns exec pod sysctl -w net.ipv6.conf.all.forwarding=1',
      'ip neighbour replace fd65::7 dev podwtest lladdr 02:00:00:00:00:07 nud permanent',
      'ip route add fd65::7 dev podwtest proto 87 metric 1024',
    ]);
  });

  test('of both families gets the objects of each family, and one link', () => {
    const rest = { hostInterfaceName: 'podwtest' };
    const both = commands('a', { ...rest, ...BY_FAMILY['both families'] });
    const isForIpv4Alone = (command: string) => command.endsWith('disable_ipv6=1');
    const ofIpv4 = commands('a', { ...rest, ...BY_FAMILY.IPv4 }).filter((command) => !isForIpv4Alone(command));
    const each = [...ofIpv4, ...commands('a', { ...rest, ...BY_FAMILY.IPv6 })];
    expect([...both].sort()).toEqual([...new Set(each)].sort());
  });

  test('of IPv6 does not set sysctls that are already set', () => {
    const keys = ['lo/disable_ipv6', 'default/disable_ipv6', 'all/disable_ipv6', 'all/forwarding'];
    const read = emptyObservation(new Map(keys.map((key) => [`net/ipv6/conf/${key}`, '0'])));
    const made = diff(wantedState(podNetwork('a', BY_FAMILY.IPv6)), read).map(formatStep);
    expect(made.filter((command) => /conf\.(lo|default|all)\./.test(command))).toEqual([]);
  });

  test('gets the requested routes in place of the default one', () => {
    const routes = ['10.0.0.0/8', '192.168.1.0/24'].map((cidr) => {
      const parsed = parsePrefix(cidr);
      if (!parsed.ok) throw new Error(cidr);
      return parsed.prefix;
    });
    const asked = commands('a', { routes }).filter((command) => command.includes(`via ${GATEWAY[4]}`));
    expect(asked).toEqual([
      'ip -n pod route add 10.0.0.0/8 via 169.254.1.1 dev eth0 proto 87',
      'ip -n pod route add 192.168.1.0/24 via 169.254.1.1 dev eth0 proto 87',
    ]);
  });

  test('gets every address, and the node a route to each', () => {
    const made = commands('a', { addresses: [address('10.65.0.7'), address('10.65.1.9')], hostInterfaceName: 'h' });
    expect(made).toEqual(
      expect.arrayContaining([
        'ip -n pod address add 10.65.0.7/32 dev eth0',
        'ip -n pod address add 10.65.1.9/32 dev eth0',
        'ip route add 10.65.0.7 dev h proto 87 scope link',
        'ip route add 10.65.1.9 dev h proto 87 scope link',
      ]),
    );
  });

  test('keeps the namespace’s forwarding switch when it matches', () => {
    const made = commands('a', { ipForwarding: true });
    expect(made.filter((command) => command.includes('ip_forward'))).toEqual([]);
  });
});

describe('the alias', () => {
  test('of the longest attachment fits into the kernel’s 255 bytes, and can be read back', () => {
    const longest = {
      network: 'n'.repeat(MAX_NETWORK_BYTES),
      containerId: 'c'.repeat(MAX_CONTAINER_ID_BYTES),
      interfaceName: 'i'.repeat(15),
    };
    expect(Buffer.byteLength(aliasOf(longest))).toBeLessThanOrEqual(255);
    expect(attachmentOfAlias(aliasOf(longest))).toEqual(longest);
  });

  test.each([null, '', 'uplink', 'podwire:', 'podwire:a/b', 'podwire:a/b/c/d', 'Podwire:a/b/eth0'])(
    '%j is not one of Podwire’s',
    (alias) => {
      expect(attachmentOfAlias(alias)).toBeUndefined();
    },
  );
});

test('the gateways are Calico’s', () => {
  expect(GATEWAY).toEqual({ 4: '169.254.1.1', 6: 'fe80::ecee:eeff:feee:eeee' });
  expect(HOST_LINK_LOCAL).toBe('fe80::ecee:eeff:feee:eeee/64');
});

// The kernel's own: ip link add x address MAC type dummy; ip link set x up; ip -6 address show dev x
test.each([
  ['02:00:00:00:00:07', 'fe80::ff:fe00:7'],
  ['00:16:3e:12:34:56', 'fe80::216:3eff:fe12:3456'],
  ['ee:ee:ee:ee:ee:ee', 'fe80::ecee:eeff:feee:eeee'],
])('an interface with the MAC address %s has the link-local address %s', (mac, address) => {
  expect(formatAddress(linkLocal(mac))).toBe(address);
});
