import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';

import type { ClusterBlock, Encapsulation } from '../cluster/cluster.js';
import { block, cluster, node, pool, view } from '../testing/routes.js';
import { AdvertisedBlocks, renderBird, type BirdConfigInput } from './bird-config.js';
import { FULL_MESH } from './peers-file.js';
import { sessionsOf } from './sessions.js';

const directory = mkdtempSync(join(tmpdir(), 'podwire-bird-config-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const NODES = [
  node('a', { ipv4: '192.0.2.1/24', ipv6: '2001:db8::1/64' }),
  node('b', { ipv4: '192.0.2.2/24', ipv6: '2001:db8::2/64' }),
];
const [A] = NODES;
const DEMAND: BirdConfigInput = {
  self: A!,
  pools: [
    pool('p', '10.0.0.0/16'),
    pool('q', '10.1.0.0/16', { encapsulation: 'vxlan' }),
    pool('lb', '10.2.0.0/16', { encapsulation: 'vxlan', loadBalancerOnly: true }),
    pool('p6', 'fd00::/16', { encapsulation: 'vxlan-cross-subnet' }),
  ],
  sessions: sessionsOf(A!, cluster({ nodes: NODES }), { asNumber: 64_512, plan: FULL_MESH }),
  own: ['10.0.1.0/26', '10.0.9.7/32', 'fd00:1::/122'],
  orphans: ['10.9.0.0/26'],
  isReflector: false,
  log: 'syslog',
};

/** BIRD's reason for refusing a configuration; empty: accepted. */
function complaint(text: string): string {
  const path = join(directory, 'bird.conf');
  writeFileSync(path, text);
  const { status, stderr, error } = spawnSync('bird', ['-p', '-c', path], { encoding: 'utf8' });
  if (error) throw error;
  return status === 0 ? '' : stderr;
}

/** The lines of one block: `filter NAME {` to `}`. */
function part(text: string, heading: string): string[] {
  const lines = text.split('\n');
  const start = lines.indexOf(`${heading} {`);
  return lines.slice(start + 1, lines.indexOf('}', start)).map((line) => line.trim());
}

describe('filters', () => {
  const text = renderBird(DEMAND);

  test('import prefixes of pools and of deleted pools, except this node’s own', () => {
    expect(part(text, 'filter podwire_import4')).toEqual([
      'if net ~ [ 10.0.1.0/26, 10.0.9.7/32 ] then reject;',
      'if net ~ [ 10.0.0.0/16+, 10.1.0.0/16+, 10.2.0.0/16+, 10.9.0.0/26+ ] then accept;',
      'reject;',
    ]);
  });

  test('export this node’s own prefixes', () => {
    expect(part(text, 'filter podwire_export4')).toEqual(['if proto = "podwire_own4" then accept;', 'reject;']);
    expect(part(text, 'protocol static podwire_own6')).toEqual(['ipv6;', 'route fd00:1::/122 blackhole;']);
  });

  test('export received routes too on a route reflector', () => {
    const reflecting = renderBird({ ...DEMAND, isReflector: true });
    expect(part(reflecting, 'filter podwire_export4')).toContain('if source = RTS_BGP then accept;');
  });

  test('program BGP routes of pools without encapsulation', () => {
    expect(part(text, 'filter podwire_program4')).toEqual([
      'if source != RTS_BGP then reject;',
      'if net ~ [ 10.0.1.0/26, 10.0.9.7/32 ] then reject;',
      'if net ~ [ 10.0.0.0/16+, 10.2.0.0/16+, 10.9.0.0/26+ ] then accept;',
      'reject;',
    ]);
    expect(part(text, 'filter podwire_program6')).toEqual([
      'if source != RTS_BGP then reject;',
      'if net ~ [ fd00:1::/122 ] then reject;',
      'reject;',
    ]);
  });
});

test('equal input renders equal text, and empty input renders a configuration', () => {
  expect(renderBird(DEMAND)).toBe(renderBird({ ...DEMAND, pools: [...DEMAND.pools].reverse() }));
  const empty = renderBird({ ...DEMAND, pools: [], sessions: [], own: [], orphans: [] });
  expect(part(empty, 'filter podwire_import4')).toEqual(['reject;']);
  expect(complaint(empty)).toBe('');
});

test('BFD runs with the peers that configure it, on the link or over routers', () => {
  const peer = {
    nodes: ['*'],
    asNumber: 65_001,
    port: 179,
    sourceAddress: undefined,
    password: undefined,
    passive: false,
  };
  const bfd = { intervalMs: 100, multiplier: 5, multihop: false };
  const peers = [
    { ...peer, name: 'plain', address: '192.0.2.10', bfd: undefined },
    { ...peer, name: 'near', address: '192.0.2.11', bfd },
    { ...peer, name: 'far', address: '198.51.100.1', bfd: { ...bfd, multihop: true } },
  ];
  const plan = { ...FULL_MESH, mesh: false };
  const render = (count: number) => {
    const sessions = sessionsOf(A!, cluster({ nodes: NODES }), {
      asNumber: 64_512,
      plan: { ...plan, peers: peers.slice(0, count) },
    });
    return renderBird({ ...DEMAND, sessions });
  };
  expect(render(1)).not.toContain('bfd');
  const text = render(3);
  expect(text.match(/^protocol bfd .*$/gm)).toEqual(['protocol bfd podwire_bfd { }']);
  const ways = (address: string) =>
    part(text, `protocol bgp 'podwire_bgp_${address}'`).filter((line) => /^(direct|multihop|bfd)/.test(line));
  expect(ways('192.0.2.10')).toEqual(['multihop;']);
  expect(ways('192.0.2.11')).toEqual(['direct;', 'bfd { interval 100 ms; multiplier 5; };']);
  expect(ways('198.51.100.1')).toEqual(['multihop;', 'bfd { interval 100 ms; multiplier 5; };']);
  expect(complaint(text)).toBe('');
});

test('nodes without IPv4 have distinct router IDs', () => {
  const identity = (name: string) =>
    /router id (.*);/.exec(renderBird({ ...DEMAND, self: node(name, { ipv6: '2001:db8::1/64' }) }))?.[1];
  expect(identity('a')).not.toBe(identity('b'));
  expect(complaint(renderBird({ ...DEMAND, self: node('a', { ipv6: '2001:db8::1/64' }) }))).toBe('');
});

test('BIRD accepts every rendered configuration', () => {
  const name = fc.stringMatching(/^[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?$/);
  const host = fc.integer({ min: 1, max: 250 });
  const optional = <T>(of: fc.Arbitrary<T>) => fc.option(of, { nil: undefined });
  const someNode = fc.record({
    name,
    host,
    v4: fc.boolean(),
    v6: fc.boolean(),
    asNumber: optional(fc.constantFrom(64_513, 4_200_000_000)),
  });
  const peer = fc.record({
    name,
    nodes: fc.constant(['*']),
    address: fc.constantFrom('198.51.100.1', '2001:db8:1::1'),
    asNumber: fc.constantFrom(64_512, 65_001),
    port: fc.constantFrom(179, 1179),
    sourceAddress: fc.constant(undefined),
    password: optional(fc.constantFrom('hush', '$#;{}\\ä')),
    passive: fc.boolean(),
    bfd: optional(
      fc.record({
        intervalMs: fc.constantFrom(10, 60_000),
        multiplier: fc.constantFrom(2, 255),
        multihop: fc.boolean(),
      }),
    ),
  });
  const encapsulation = fc.constantFrom<Encapsulation>('none', 'vxlan', 'ipip-cross-subnet');
  const demand = fc.record({
    nodes: fc.array(someNode, { minLength: 1, maxLength: 6 }),
    plan: fc.record({
      mesh: fc.boolean(),
      routeReflectors: fc.constantFrom([], [{ nodes: ['a*', '0*', '1*'], clusterId: '192.0.2.254' }]),
      peers: fc.array(peer, { maxLength: 2 }),
    }),
    encapsulation,
    own: fc.subarray(DEMAND.own.slice()),
    log: fc.constantFrom('syslog', 'stderr'),
  });
  fc.assert(
    fc.property(demand, ({ nodes, plan, encapsulation: how, own, log }) => {
      const known = nodes.map(({ name: of, host: at, v4, v6, asNumber }) => {
        const text = {
          ...(v4 ? { ipv4: `192.0.2.${at}/24` } : {}),
          ...(v6 ? { ipv6: `2001:db8::${at}/64` } : {}),
          ...(asNumber === undefined ? {} : { asNumber }),
        };
        return node(of, text);
      });
      const sessions = sessionsOf(known[0]!, cluster({ nodes: known }), { asNumber: 64_512, plan });
      const pools = [pool('p', '10.0.0.0/16', { encapsulation: how }), pool('p6', 'fd00::/16')];
      const isReflector = plan.routeReflectors.length > 0;
      const text = renderBird({ self: known[0]!, pools, sessions, own, orphans: DEMAND.orphans, isReflector, log });
      expect(complaint(text), text).toBe('');
    }),
    { seed: 20_261_121, numRuns: 60 },
  );
}, 120_000);

const ALL = { blocks: 'all', hasOtherChanges: true } as const;
const POOLS = [pool('p', '10.0.0.0/16')];

test('a node announces its blocks and borrowed addresses, and tracks foreign blocks without a pool', () => {
  const blocks = [
    block('10.0.1.0/26', { pool: 'p', node: 'a', borrowed: { '10.0.1.5': 'b' } }),
    block('10.0.2.0/26', { pool: 'p', node: 'b', borrowed: { '10.0.2.5': 'a', '10.0.2.6': 'c' } }),
    block('10.0.3.0/26', { pool: 'p', borrowed: { '10.0.3.5': 'a' } }),
    block('10.9.1.0/26', { node: 'a' }),
    block('10.9.2.0/26', { node: 'b', pool: 'gone', borrowed: { '10.9.2.5': 'a' } }),
  ];
  const advertised = new AdvertisedBlocks();
  expect(advertised.update(view('a', { pools: POOLS, blocks }), ALL)).toBe(true);
  expect(advertised.own()).toEqual(['10.0.1.0/26', '10.0.2.5/32', '10.0.3.5/32', '10.9.1.0/26', '10.9.2.5/32']);
  expect(advertised.orphans()).toEqual(['10.9.2.0/26']);
  expect(advertised.update(view('a', { pools: POOLS, blocks }), ALL)).toBe(false);
});

test('a pool that is created again adopts its blocks', () => {
  const blocks = [block('10.0.2.0/26', { pool: 'p', node: 'b' })];
  const advertised = new AdvertisedBlocks();
  advertised.update(view('a', { blocks }), ALL);
  expect(advertised.orphans()).toEqual(['10.0.2.0/26']);
  expect(advertised.update(view('a', { blocks, pools: POOLS }), { blocks: new Set(), hasOtherChanges: true })).toBe(
    true,
  );
  expect(advertised.orphans()).toEqual([]);
});

test('incremental updates equal a full one, and report whether anything changed', () => {
  const someBlock = fc
    .record({ third: fc.nat(3), nodeName: fc.constantFrom('a', 'b', undefined), borrower: fc.constantFrom('a', 'b') })
    .chain(({ third, nodeName, borrower }) =>
      fc.constantFrom('p', undefined).map((poolName): ClusterBlock => {
        const { cidr, borrowed } = block(`10.0.${third}.0/26`, { borrowed: { [`10.0.${third}.5`]: borrower } });
        return { cidr, borrowed, nodeName, poolName };
      }),
    );
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(3), fc.option(someBlock)), { maxLength: 30 }), (changes) => {
      const advertised = new AdvertisedBlocks();
      const blocks = new Map<string, ClusterBlock>();
      for (const [third, given] of changes) {
        const cidr = given ? `10.0.${(given.cidr.value >> 8n) & 0xffn}.0/26` : `10.0.${third}.0/26`;
        const before = [advertised.own(), advertised.orphans()];
        if (given) blocks.set(cidr, given);
        else blocks.delete(cidr);
        const seen = { self: 'a', isDatastoreLocked: false, cluster: { ...cluster({ pools: POOLS }), blocks } };
        const isOther = advertised.update(seen, { blocks: new Set([cidr]), hasOtherChanges: false });
        const full = new AdvertisedBlocks();
        full.update(seen, ALL);
        const after = [advertised.own(), advertised.orphans()];
        expect(after).toEqual([full.own(), full.orphans()]);
        expect(isOther).toBe(JSON.stringify(before) !== JSON.stringify(after));
      }
    }),
    { seed: 20_261_121, numRuns: 300 },
  );
});
