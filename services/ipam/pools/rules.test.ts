import { describe, expect, test } from 'vitest';

import { checkPool, type PoolRequest } from './rules.js';

const poolRequest = (rest: Partial<PoolRequest>): PoolRequest => ({
  name: 'p',
  cidr: '10.0.0.0/16',
  blockSizeBits: 0,
  disabled: false,
  ...rest,
});

/** One that the key language allows has at most 512 characters. */
const selectorOf = (length: number): string => `has(${'a'.repeat(500)}) || has(${'b'.repeat(length - 514)})`;

describe('a pool is refused', () => {
  const cases: readonly (readonly [string, Partial<PoolRequest>, readonly (readonly [string, RegExp])[]])[] = [
    ['without a name', { name: '' }, [['name', /is empty/]]],
    ['with a name that is not a subdomain', { name: 'A_b' }, [['name', /RFC 1123/]]],
    ['with a name too long', { name: 'a'.repeat(254) }, [['name', /longer than 253 bytes/]]],
    ['with a malformed CIDR', { cidr: '10.0.0/8' }, [['cidr', /is not a CIDR/]]],
    ['with host bits', { cidr: '10.0.0.1/24' }, [['cidr', /has host bits set/]]],
    ['with IPv4 blocks too large', { blockSizeBits: 19 }, [['blockSizeBits', /is 19; .* from 20 to 32/]]],
    ['with IPv4 blocks of no size', { blockSizeBits: 33 }, [['blockSizeBits', /is 33/]]],
    ['with a negative block size', { blockSizeBits: -1 }, [['blockSizeBits', /is -1/]]],
    ['with IPv6 blocks of no size', { cidr: 'fd00::/64', blockSizeBits: 129 }, [['blockSizeBits', /from 116 to 128/]]],
    ['with a selector just too long', { nodeSelector: selectorOf(1025) }, [['nodeSelector', /1025 characters long/]]],
    [
      'with a namespace selector too long',
      { namespaceSelector: selectorOf(1025), allowedUses: ['Workload'] },
      [['namespaceSelector', /1025 characters long/]],
    ],
    [
      'with a namespace selector for policies',
      { namespaceSelector: 'global()', allowedUses: ['Workload'] },
      [['namespaceSelector', /global\(\)/]],
    ],
    [
      'with both encapsulations for IPv6',
      { cidr: 'fd00::/64', ipipMode: 'Always', vxlanMode: 'Always' },
      [
        ['ipipMode', /carries no IPv6/],
        ['ipipMode', /must be Never/],
      ],
    ],
    [
      'with blanks for a namespace selector, and tunnels',
      { namespaceSelector: ' all() ' },
      [['namespaceSelector', /remove Tunnel/]],
    ],
    ['with IPv6 blocks too large', { cidr: 'fd00::/64', blockSizeBits: 115 }, [['blockSizeBits', /from 116 to 128/]]],
    ['smaller than a block', { cidr: '10.0.0.0/27' }, [['cidr', /smaller than one block of \/26/]]],
    ['with a CIDR of 49 characters', { cidr: `${'0'.repeat(41)}1.0.0.0/8` }, [['cidr', /longer than 48 characters/]]],
    [
      'with both encapsulations',
      { ipipMode: 'Always', vxlanMode: 'CrossSubnet' },
      [['ipipMode', /one of them must be Never/]],
    ],
    ['with IPIP for IPv6', { cidr: 'fd00::/64', ipipMode: 'CrossSubnet' }, [['ipipMode', /carries no IPv6/]]],
    [
      'with a malformed selector',
      { nodeSelector: 'zone = "a"' },
      [['nodeSelector', /is not a valid selector: at character 6: "=" found, == expected/]],
    ],
    ['with a selector for policies', { nodeSelector: 'has(a) || global()' }, [['nodeSelector', /global\(\)/]]],
    [
      'with a namespace selector and tunnels',
      { namespaceSelector: 'has(a)' },
      [['namespaceSelector', /remove Tunnel/]],
    ],
    [
      'with a malformed namespace selector',
      { namespaceSelector: 'has(', allowedUses: ['Workload'] },
      [['namespaceSelector', /is not a valid selector/]],
    ],
    [
      'with an unknown use',
      { allowedUses: ['Workload', 'Other'] },
      [['allowedUses', /has unknown uses Other; use Workload, Tunnel, LoadBalancer/]],
    ],
    [
      'with too many uses',
      { allowedUses: Array(11).fill('Workload') },
      [['allowedUses', /has 11 entries; at most 10/]],
    ],
    [
      'for load balancers and other uses',
      { allowedUses: ['LoadBalancer', 'Tunnel'] },
      [['allowedUses', /must be the only one/]],
    ],
    [
      'for load balancers with fields that do not apply to them',
      { allowedUses: ['LoadBalancer'], vxlanMode: 'Always', nodeSelector: 'has(a)', disableBgpExport: true },
      [
        ['vxlanMode', /for LoadBalancer; use Never/],
        ['nodeSelector', /use all\(\)/],
        ['disableBgpExport', /useless unless exported/],
      ],
    ],
    [
      'for load balancers with IPIP',
      { allowedUses: ['LoadBalancer'], ipipMode: 'Always' },
      [['ipipMode', /use Never/]],
    ],
    ['smaller than an IPv6 block', { cidr: 'fd00::/123' }, [['cidr', /smaller than one block of \/122/]]],
    ['inside the IPv4 link-local range', { cidr: '169.254.4.0/24' }, [['cidr', /169\.254\.0\.0\/16/]]],
    ['around the IPv4 link-local range', { cidr: '169.0.0.0/8' }, [['cidr', /link-local/]]],
    ['inside the IPv4 loopback range', { cidr: '127.0.0.0/16' }, [['cidr', /loopback range 127\.0\.0\.0\/8/]]],
    ['of IPv4 multicast addresses', { cidr: '224.0.0.0/8' }, [['cidr', /multicast/]]],
    ['inside the IPv6 link-local range', { cidr: 'fe80::/64' }, [['cidr', /fe80::\/10/]]],
    [
      'with two faults, both named',
      { name: '-', cidr: 'x' },
      [
        ['name', /RFC 1123/],
        ['cidr', /not a CIDR/],
      ],
    ],
    [
      'with every error of its range',
      { cidr: '169.254.0.0/28' },
      [
        ['cidr', /smaller/],
        ['cidr', /link-local/],
      ],
    ],
  ];

  test.each(cases)('%s', (_, rest, expected) => {
    const checked = checkPool(poolRequest(rest));
    const faults = checked.ok ? [] : checked.faults;
    expect(faults.map(({ field }) => field)).toEqual(expected.map(([field]) => field));
    faults.forEach(({ reason }, i) => expect(reason).toMatch(expected[i]![1]));
  });
});

describe('a pool may', () => {
  test.each<[string, Partial<PoolRequest>, object]>([
    ['have the largest IPv4 blocks', { blockSizeBits: 20 }, { blockSizeBits: 20 }],
    ['have the smallest IPv4 blocks', { blockSizeBits: 32 }, { blockSizeBits: 32 }],
    ['have the largest IPv6 blocks', { cidr: 'fd00::/64', blockSizeBits: 116 }, { blockSizeBits: 116 }],
    ['have the smallest IPv6 blocks', { cidr: 'fd00::/64', blockSizeBits: 128 }, { blockSizeBits: 128 }],
    ['be one block, of the default size', { cidr: 'fd00::/122' }, { blockSizeBits: 122 }],
    ['lie beside the link-local ranges', { cidr: '169.252.0.0/15' }, {}],
    ['lie behind the IPv4 link-local range', { cidr: '169.255.0.0/16' }, {}],
    ['lie behind the IPv6 link-local range', { cidr: 'fec0::/10' }, {}],
    [
      'have selectors of 1024 characters',
      { nodeSelector: selectorOf(1024), namespaceSelector: selectorOf(1024), allowedUses: ['Workload'] },
      {},
    ],
    ['name ten uses', { allowedUses: Array(10).fill('Workload') }, { allowedUses: ['Workload'] }],
    [
      'have a blank namespace selector, and tunnels',
      { namespaceSelector: ' ' },
      { allowedUses: ['Workload', 'Tunnel'] },
    ],
    [
      'be for load balancers on all nodes',
      { allowedUses: ['LoadBalancer'], nodeSelector: ' all()', natOutgoing: true },
      {},
    ],
    ['have a range only', {}, { blockSizeBits: 26, nodeSelector: 'all()', allowedUses: ['Workload', 'Tunnel'] }],
    ['be smaller than a block while it is disabled', { cidr: '10.0.0.0/27', disabled: true }, { blockSizeBits: 26 }],
    ['be one block of one address', { cidr: '10.0.0.0/32', blockSizeBits: 32 }, { blockSizeBits: 32 }],
    ['have IPIP to other subnets', { ipipMode: 'CrossSubnet' }, { ipipMode: 'CrossSubnet', vxlanMode: 'Never' }],
    ['have IPv6 in VXLAN', { cidr: 'fd00::/64', vxlanMode: 'Always' }, { vxlanMode: 'Always' }],
    ['choose nodes', { nodeSelector: 'zone == "a"' }, { nodeSelector: 'zone == "a"' }],
    ['choose all nodes by default', { nodeSelector: ' ' }, { nodeSelector: 'all()' }],
    [
      'choose namespaces when it is for pods alone',
      { namespaceSelector: 'has(a)', allowedUses: ['Workload'] },
      { namespaceSelector: 'has(a)' },
    ],
    ['name a use twice', { allowedUses: ['Tunnel', 'Tunnel'] }, { allowedUses: ['Tunnel'] }],
    ['be for load balancers', { allowedUses: ['LoadBalancer'] }, { allowedUses: ['LoadBalancer'] }],
    ['serve explicit requests only', { assignmentMode: 'Manual' }, { assignmentMode: 'Manual' }],
  ])('%s', (_, rest, expected) => {
    expect(checkPool(poolRequest(rest))).toMatchObject({ ok: true, spec: expected });
  });
});
