import type { Json, JsonObject } from '@podwire/dataplane/nft/table';
import { Ruleset } from '@podwire/dataplane/nft/ruleset';
import { pool } from '@podwire/dataplane/testing/routes';
import { readConflist } from '@podwire/plugin/install/conflist';
import { expect, test } from 'vitest';

import { preflightChecks, type PreflightFacts } from './checks.js';

const device = (name: string, mtuBytes = 1500) => ({
  name,
  kind: null,
  up: true,
  mac: null,
  mtuBytes,
  tunnel: undefined,
});
const route = (destination: string, by: string, protocol = 2) => ({
  ...{ destination, device: by, protocol, type: 'unicast' as const, gateway: undefined, onlink: false },
  ...{ source: undefined, metric: 0 },
});

/** A node with everything that Podwire needs, before the installation. */
const READY: PreflightFacts = {
  kernelRelease: '6.1.0-28-amd64',
  modules: new Map([
    ['veth', 'works'],
    ['vxlan', 'loadable'],
    ['ipip', 'missing'],
    ['sch_tbf', 'loadable'],
  ]),
  nftFault: undefined,
  sysctls: new Map([
    ['net.ipv4.ip_forward', '1'],
    ['net.ipv6.conf.all.disable_ipv6', '0'],
  ]),
  installation: { binDirectory: '/opt/cni/bin', configDirectory: '/etc/cni/net.d', configName: '10-podwire.conflist' },
  runtime: {
    file: '/etc/containerd/config.toml',
    binDirectories: ['/opt/cni/bin'],
    configDirectory: '/etc/cni/net.d',
    usesInternalLoopback: false,
  },
  varRunTarget: '/run',
  chain: { plugins: [] },
  chainVersions: new Map([['loopback', { kind: 'answered', versions: ['1.0.0'] }]]),
  configFiles: [],
  chains: [],
  legacyTables: [],
  devices: [device('eth0')],
  addresses: [{ device: 'eth0', address: '192.0.2.1/24' }],
  routes: [route('0.0.0.0/0', 'eth0'), route('192.0.2.0/24', 'eth0')],
  pools: [pool('pods', '10.65.0.0/16', { encapsulation: 'vxlan', natOutgoing: true })],
  isClockSynchronized: true,
};

/** The checks that are not ok. */
const findings = (changes: Partial<PreflightFacts>) =>
  preflightChecks({ ...READY, ...changes })
    .filter(({ result }) => result !== 'ok')
    .map(({ check, result, detail }) => `${check} ${result}: ${detail}`);

const chainOf = (family: 'ip' | 'inet', table: string, name: string, ...exprs: readonly (readonly JsonObject[])[]) => {
  const rules = exprs.map((expr): JsonObject => ({
    rule: { chain: name, handle: 7, expr } satisfies Record<string, Json>,
  }));
  return {
    chain: { table: { family, name: table }, name, hook: 'forward' as const },
    ruleset: new Ruleset([{ chain: { name, policy: exprs.length > 0 ? 'accept' : 'drop' } }, ...rules]),
  };
};

test('a node with everything that Podwire needs has no findings', () => {
  expect(findings({})).toEqual([]);
});

const SIX = pool('six', 'fd65::/48', { encapsulation: 'vxlan' });
const foreign = (type: string) => readConflist(JSON.stringify({ name: 'n', cniVersion: '1.0.0', plugins: [{ type }] }));

const CASES: readonly (readonly [string, Partial<PreflightFacts>, readonly RegExp[]])[] = [
  ['an old kernel', { kernelRelease: '5.10.0-30-amd64' }, [/^kernel failed: Linux 5.10.*need 5\.13; upgrade it/]],
  [
    'missing modules',
    {
      modules: new Map([
        ['veth', 'missing'],
        ['sch_tbf', 'missing'],
        ['ipip', 'works'],
      ]),
    },
    [
      /^module veth failed: .*modprobe veth/,
      /^module vxlan warning: unknown/,
      /^module sch_tbf warning: .*limit fails/,
    ],
  ],
  [
    'a pool that needs a missing module',
    { pools: [pool('i', '10.65.0.0/16', { encapsulation: 'ipip' })] },
    [/^module ipip failed: .*modprobe ipip/],
  ],
  ['no program nft', { nftFault: { text: 'install it', isMissing: true } }, [/^nftables failed: install it/]],
  [
    'an unreadable firewall',
    { nftFault: { text: 'run as root', isMissing: false } },
    [/^nftables warning: run as root/],
  ],
  ['no IPv6', { pools: [SIX], sysctls: new Map() }, [/^sysctls failed: the kernel has no IPv6/]],
  [
    'an uplink that does not forward',
    { sysctls: new Map([...READY.sysctls, ['net.ipv4.conf.eth0.forwarding', '0']]) },
    [/^sysctls failed: net\.ipv4\.conf\.eth0\.forwarding is 0/],
  ],
  [
    'other directories of the runtime',
    { runtime: { ...READY.runtime!, binDirectories: ['/usr/lib/cni'], configDirectory: '/etc/cni/podman' } },
    [/^runtime failed: .*\/usr\/lib\/cni, not \/opt\/cni\/bin; set cni\.binDirectory/, /^runtime failed: .*podman/],
  ],
  ['an unknown runtime', { runtime: undefined }, [/^runtime warning: no readable configuration/]],
  ['no link /var/run', { varRunTarget: undefined }, [/^\/var\/run failed: no link to \/run/]],
  [
    'no loopback',
    { chainVersions: new Map([['loopback', { kind: 'missing' }]]) },
    [/^programs failed: program loopback.*missing in \/opt\/cni\/bin: install it/],
  ],
  [
    'no loopback that the runtime runs',
    {
      chainVersions: new Map([['loopback', { kind: 'missing' }]]),
      runtime: { ...READY.runtime!, usesInternalLoopback: true },
    },
    [],
  ],
  [
    'other network configurations',
    {
      configFiles: [
        { name: '05-cilium.conflist', content: foreign('cilium-cni') },
        { name: '10-podwire.conflist', content: foreign('podwire') },
        { name: '20-calico.conflist', content: foreign('calico') },
        { name: '90-bridge.conf', content: foreign('bridge') },
      ],
    },
    [/^configurations failed: 05-cilium.* comes before/, /^configurations warning: 20-calico/],
  ],
  [
    'a policy DROP of iptables',
    { chains: [chainOf('ip', 'filter', 'FORWARD')] },
    [/^firewall warning: .*chain FORWARD of table ip filter \(policy drop\); run: iptables .*FIREWALL_ACCEPT=false/],
  ],
  [
    'a dropping chain of another table',
    { chains: [chainOf('inet', 'site', 'forward', [{ drop: null }])] },
    [/^firewall failed: .*chain forward of table inet site \(rule with handle 7\); run: nft insert rule/],
  ],
  [
    'firewalld',
    { chains: [chainOf('inet', 'firewalld', 'filter_FORWARD', [{ accept: null }])] },
    [/^firewall warning: firewalld is active: .*4789/],
  ],
  ['iptables-legacy', { legacyTables: ['nat', 'filter'] }, [/^firewall warning: iptables-legacy has a filter/]],
  ['no known interface', { devices: [device('bond0')] }, [/^mtu warning: no interface/]],
  ['a small MTU', { devices: [device('eth0', 1300)], pools: [SIX] }, [/^mtu failed: .*1230.*IPv6 needs 1280/]],
  [
    'an overlapping route',
    { routes: [...READY.routes, route('10.0.0.0/8', 'vpn0')] },
    [/^ranges failed: pool pods \(10\.65\.0\.0\/16\) overlaps with the route to 10\.0\.0\.0\/8 by vpn0; choose/],
  ],
  [
    'an address in a pool',
    { addresses: [{ device: 'lo', address: '10.65.9.9/32' }] },
    [/^ranges failed: .*address 10\.65\.9\.9\/32 by lo/],
  ],
  ['a clock without a source', { isClockSynchronized: false }, [/^clock warning: not synchronized/]],
  ['an unreadable clock', { isClockSynchronized: undefined }, [/^clock warning: unknown/]],
];

test.each(CASES)('%s', (_, changes, expected) => {
  const found = findings(changes);
  expect(found).toHaveLength(expected.length);
  for (const [at, text] of found.entries()) expect(text).toMatch(expected[at]!);
});

test('routes of Podwire and of Calico are not in the way of their own pools', () => {
  const own = [
    route('10.65.0.0/26', 'eth0', 87),
    route('10.65.0.64/26', 'vxlan4.podwire'),
    route('10.65.1.1/32', 'cali12'),
  ];
  expect(findings({ routes: [...READY.routes, ...own] })).toEqual([]);
});

test('settings that podwire-node sets are named', () => {
  const detail = preflightChecks({
    ...READY,
    sysctls: new Map([
      ['net.ipv4.ip_forward', '0'],
      ['net.ipv6.conf.all.disable_ipv6', '0'],
    ]),
  });
  expect(detail).toContainEqual({ check: 'sysctls', result: 'ok', detail: 'podwire-node sets net.ipv4.ip_forward' });
});
