import { existsSync, readFileSync, writeFileSync } from 'node:fs';

import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';

import type { ClusterView } from '../cluster/cluster.js';
import { addBridge, ALL, BirdNode, removeBridge, run, type NodeOptions } from '../testing/bird.js';
import { block, node, pool, view, type ClusterText } from '../testing/routes.js';
import { FULL_MESH, type PeerPlan } from './peers-file.js';

const NAMES = ['a', 'b', 'c'] as const;
type Name = (typeof NAMES)[number];

const NODES = NAMES.map((name, place) =>
  node(name, { ipv4: `192.0.2.${place + 1}/24`, ipv6: `2001:db8::${place + 1}/64` }),
);
const POOLS = [
  pool('p', '10.0.0.0/16'),
  pool('p6', 'fd00::/16'),
  pool('tunnelled', '10.1.0.0/16', { encapsulation: 'vxlan' }),
];
const BLOCKS = [
  block('10.0.1.0/26', { pool: 'p', node: 'a' }),
  block('10.0.2.0/26', { pool: 'p', node: 'b' }),
  // `c` has an address of this block of `a`'s.
  block('10.0.1.64/26', { pool: 'p', node: 'a', borrowed: { '10.0.1.70': 'c' } }),
  block('fd00:2::/122', { pool: 'p6', node: 'b' }),
  block('10.1.2.0/26', { pool: 'tunnelled', node: 'b' }),
  // Its pool was deleted.
  block('10.9.2.0/26', { node: 'b' }),
];

const see = (self: Name, text: ClusterText = {}): ClusterView =>
  view(self, { nodes: NODES, pools: POOLS, blocks: BLOCKS, ...text });

/** BGP waits some seconds between attempts, and after a restart. */
const PATIENCE = { timeout: 90_000, interval: 100 };
vi.setConfig({ testTimeout: 240_000 });

const soon = (look: () => void) => vi.waitFor(look, PATIENCE);

let nodes: Record<Name, BirdNode>;

beforeAll(addBridge);
afterAll(removeBridge);

interface StartOptions extends NodeOptions {
  readonly names?: readonly Name[];
  readonly text?: ClusterText;
}

/** Nodes with a follower, and a BIRD that finds its configuration at the start. */
async function start({ names = NAMES, text, ...options }: StartOptions = {}): Promise<void> {
  nodes = { a: new BirdNode('a', 1), b: new BirdNode('b', 2), c: new BirdNode('c', 3) };
  for (const name of names) {
    await nodes[name].follow(see(name, text), options);
    if (options.run === 'child') continue;
    await soon(() => expect(existsSync(nodes[name].configPath)).toBe(true));
    await nodes[name].startDaemon();
  }
}

afterEach(async () => {
  for (const name of NAMES) await nodes[name].remove();
});

const established = (of: Name, ...peers: Name[]): string[] =>
  peers
    .flatMap((other) => {
      const host = NAMES.indexOf(other) + 1;
      return [`192.0.2.${host}`, `2001:db8::${host}`].map((address) => `node ${other} at ${address}: established`);
    })
    .sort(byAddress);

const byAddress = (a: string, b: string): number => (a.split(' at ')[1]! < b.split(' at ')[1]! ? -1 : 1);

const TOLD_BY_A = ['10.0.1.0/26 via 192.0.2.1 dev eth0', '10.0.1.64/26 via 192.0.2.1 dev eth0'];
const TOLD_BY_B = [
  '10.0.2.0/26 via 192.0.2.2 dev eth0',
  '10.9.2.0/26 via 192.0.2.2 dev eth0',
  'fd00:2::/122 via 2001:db8::2 dev eth0',
];
const TOLD_BY_C = ['10.0.1.70 via 192.0.2.3 dev eth0'];

describe('full mesh', () => {
  test('every node has exactly the blocks and borrowed addresses of the other nodes, of both families', async () => {
    nodes = { a: new BirdNode('a', 1), b: new BirdNode('b', 2), c: new BirdNode('c', 3) };
    // Routes that are not blocks are neither exported nor imported: the node's own, and routes of pods and tunnels.
    nodes.b.ip('route', 'add', '172.16.0.0/12', 'via', '192.0.2.77');
    nodes.b.ip('route', 'add', '10.0.2.5/32', 'dev', 'eth0', 'proto', '87');
    nodes.b.ip('route', 'add', 'blackhole', '10.0.2.0/26', 'proto', '87');
    for (const name of NAMES) {
      await nodes[name].startDaemon();
      await nodes[name].follow(see(name));
    }
    await soon(() => {
      expect(nodes.a.sessions()).toEqual(established('a', 'b', 'c'));
      expect(nodes.b.sessions()).toEqual(established('b', 'a', 'c'));
      expect(nodes.a.routes()).toEqual([...TOLD_BY_B, ...TOLD_BY_C].sort());
      expect(nodes.b.routes()).toEqual([...TOLD_BY_A, ...TOLD_BY_C].sort());
      expect(nodes.c.routes()).toEqual([...TOLD_BY_A, ...TOLD_BY_B].sort());
    });
    expect(nodes.a.bird.status()).toMatchObject({ isReachable: true, refusal: undefined });
    expect(nodes.a.bird.conditions()).toEqual([]);
    expect(nodes.a.logged.join('')).toContain('BGP session with node b at 192.0.2.2 is established');
    // The node's own routes are unchanged.
    expect(nodes.b.ip('route', 'show', 'proto', '87')).toContain('blackhole 10.0.2.0/26');
  });

  test('added and removed blocks are announced and withdrawn without losing a session', async () => {
    await start();
    await soon(() => expect(nodes.a.sessions()).toEqual(established('a', 'b', 'c')));
    const since = nodes.a.bird.status().sessions.map(({ state }) => state?.since);
    const later = BLOCKS.filter(({ nodeName }) => nodeName !== 'a');
    const blocks = [...later, block('10.0.7.0/26', { pool: 'p', node: 'a' })];
    nodes.a.bird.follow(see('a', { blocks }), {
      blocks: new Set(['10.0.1.0/26', '10.0.1.64/26', '10.0.7.0/26']),
      hasOtherChanges: false,
    });
    await soon(() => {
      expect(nodes.b.routes()).toEqual(['10.0.7.0/26 via 192.0.2.1 dev eth0', ...TOLD_BY_C].sort());
    });
    expect(nodes.a.bird.status().sessions.map(({ state }) => state?.since)).toEqual(since);
  });

  test('nodes with their own autonomous systems peer with the other nodes', async () => {
    const own = [NODES[0]!, { ...NODES[1]!, asNumber: 65_002 }, { ...NODES[2]!, asNumber: 65_003 }];
    await start({ text: { nodes: own } });
    await soon(() => {
      expect(nodes.a.routes()).toEqual([...TOLD_BY_B, ...TOLD_BY_C].sort());
      expect(nodes.b.routes()).toEqual([...TOLD_BY_A, ...TOLD_BY_C].sort());
    });
  });
});

test('a route reflector reflects routes of its clients, which have no other peers', async () => {
  const plan: PeerPlan = { ...FULL_MESH, mesh: false, routeReflectors: [{ nodes: ['c'], clusterId: '192.0.2.254' }] };
  await start({ plan });
  await soon(() => {
    expect(nodes.a.sessions()).toEqual(established('a', 'c'));
    expect(nodes.c.sessions()).toEqual(established('c', 'a', 'b'));
    expect(nodes.a.routes()).toEqual([...TOLD_BY_B, ...TOLD_BY_C].sort());
    expect(nodes.b.routes()).toEqual([...TOLD_BY_A, ...TOLD_BY_C].sort());
  });
});

test('a configured peer with a password, a port and BFD receives this node’s blocks, and its routes outside the pools are rejected', async () => {
  await start({
    names: ['a'],
    plan: {
      ...FULL_MESH,
      mesh: false,
      peers: [
        {
          name: 'tor',
          nodes: ['*'],
          address: '192.0.2.2',
          asNumber: 65_001,
          port: 1179,
          sourceAddress: undefined,
          password: 'hush',
          passive: false,
          bfd: { intervalMs: 300, multiplier: 10, multihop: false },
        },
      ],
    },
  });
  writeFileSync(
    nodes.b.configPath,
    `router id 192.0.2.2; protocol device {} protocol bfd {} protocol kernel { ipv4 { export all; }; }
     protocol static { ipv4; route 10.0.99.0/26 blackhole; route 0.0.0.0/0 blackhole; route 10.0.1.0/26 blackhole; }
     protocol bgp { local 192.0.2.2 port 1179 as 65001; neighbor 192.0.2.1 as 64512; password "hush"; connect delay time 1; direct; bfd { multiplier 10; };
       ipv4 { import all; export where source = RTS_STATIC; }; }`,
  );
  await nodes.b.startDaemon();
  await soon(() => {
    expect(nodes.a.sessions()).toEqual(['peer tor at 192.0.2.2: established']);
    expect(nodes.a.routes()).toEqual(['10.0.99.0/26 via 192.0.2.2 dev eth0']);
    expect(nodes.b.routes()).toContain('10.0.1.64/26 via 192.0.2.1 dev eth0');
    expect(run('birdcl', '-s', nodes.a.socketPath, 'show bfd sessions')).toMatch(/^192\.0\.2\.2 .* Up /m);
  });
});

describe('failures', () => {
  test('a session that goes down and comes back is logged, and its routes survive a restart', async () => {
    await start();
    await soon(() => {
      expect(nodes.a.routes()).toEqual([...TOLD_BY_B, ...TOLD_BY_C].sort());
      expect(nodes.b.routes()).toEqual([...TOLD_BY_A, ...TOLD_BY_C].sort());
    });
    await nodes.b.killDaemon();
    await soon(() => expect(nodes.a.sessions()).toContain('node b at 192.0.2.2: down'));
    await soon(() => expect(nodes.a.logged.join('')).toContain('BGP session with node b at 192.0.2.2 is down'));
    const reason = nodes.a.bird.status().sessions.find(({ session }) => session.neighbour === '192.0.2.2')
      ?.state?.reason;
    expect(reason).toBeDefined();
    expect(nodes.a.bird.conditions()).toEqual([
      { reason: 'BgpSessionDown', message: expect.stringContaining('node b at 192.0.2.2 (') },
    ]);
    expect(nodes.a.routes()).toEqual([...TOLD_BY_B, ...TOLD_BY_C].sort());
    expect(nodes.b.routes()).toEqual([...TOLD_BY_A, ...TOLD_BY_C].sort());
    await soon(() => expect(nodes.b.bird.status().isReachable).toBe(false));

    await nodes.b.startDaemon('-R');
    await soon(() => expect(nodes.a.sessions()).toEqual(established('a', 'b', 'c')));
    await soon(() => expect(nodes.b.bird.status().isReachable).toBe(true));
    expect(nodes.a.routes()).toEqual([...TOLD_BY_B, ...TOLD_BY_C].sort());
  });

  test('a configuration that BIRD refuses is reported, and changes neither BIRD nor the file', async () => {
    await start({ names: ['a', 'b'] });
    await soon(() => expect(nodes.a.routes()).toEqual(TOLD_BY_B));
    const before = readFileSync(nodes.a.configPath, 'utf8');
    const bad = {
      name: 'x',
      nodes: ['*'],
      address: '192.0.2.9',
      asNumber: 1,
      port: 179,
      sourceAddress: undefined,
      password: 'a"b',
      passive: false,
      bfd: undefined,
    };
    const refused = { reason: 'BirdRefused', message: expect.stringContaining('bird.conf.candidate:') };
    await nodes.a.follow(see('a'), { plan: { ...FULL_MESH, peers: [bad] } });
    await soon(() => expect(nodes.a.bird.conditions()).toContainEqual(refused));
    await soon(() => expect(nodes.a.bird.status().refusal).toMatch(/bird\.conf\.candidate:\d+:\d+ /));
    expect(nodes.a.logged.filter((line) => line.includes('BIRD refused its configuration'))).toHaveLength(1);
    expect(readFileSync(nodes.a.configPath, 'utf8')).toBe(before);
    expect(existsSync(`${nodes.a.configPath}.candidate`)).toBe(false);
    expect(nodes.a.routes()).toEqual(TOLD_BY_B);

    await nodes.a.follow(see('a'));
    await soon(() => expect(nodes.a.bird.status()).toMatchObject({ isReachable: true, refusal: undefined }));
  });

  test('an unreachable BIRD is reported, finds its configuration at its start, and is reconnected', async () => {
    await start({ names: ['b'] });
    await nodes.a.follow(see('a'));
    await soon(() => expect(nodes.a.bird.conditions()).toMatchObject([{ reason: 'BirdUnreachable' }]));
    await soon(() => expect(readFileSync(nodes.a.configPath, 'utf8')).toContain('router id 192.0.2.1;'));
    expect(nodes.a.logged.filter((line) => line.includes('BIRD is unreachable'))).toHaveLength(1);
    await nodes.a.startDaemon();
    await soon(() => {
      expect(nodes.a.bird.status().isReachable).toBe(true);
      expect(nodes.a.routes()).toEqual(TOLD_BY_B);
    });
  });

  test('a program other than BIRD at the socket is reported', async () => {
    await start({ names: [] });
    writeFileSync(nodes.a.socketPath, '');
    await nodes.a.follow(see('a'));
    await soon(() => expect(nodes.a.logged.join('')).toContain('ECONNREFUSED'));
  });

  test('without this node’s registration BIRD keeps its configuration', async () => {
    await start({ names: ['a', 'b'] });
    await soon(() => expect(nodes.a.routes()).toEqual(TOLD_BY_B));
    const before = readFileSync(nodes.a.configPath, 'utf8');
    nodes.a.bird.follow(see('a', { nodes: NODES.slice(1) }), ALL);
    nodes.a.bird.follow(see('a', { nodes: NODES.slice(1), blocks: [] }), ALL);
    nodes.a.bird.follow(see('a'), ALL);
    await soon(() => expect(nodes.a.bird.status().sessions).toHaveLength(4));
    expect(readFileSync(nodes.a.configPath, 'utf8')).toBe(before);
  });
});

describe('as a child', () => {
  const birds = (name: Name): string[] =>
    run('ip', 'netns', 'pids', name)
      .split('\n')
      .filter((pid) => pid !== '');

  test('BIRD is started, restarted when it dies, and stopped so that routes stay', async () => {
    await start({ names: ['a', 'b'], run: 'child' });
    await soon(() => expect(nodes.a.routes()).toEqual(TOLD_BY_B));
    const [first = ''] = birds('a');
    run('kill', '-KILL', first);
    await soon(() => {
      // One reading, as between two the first route may vanish.
      expect(birds('a')).toEqual([expect.not.stringMatching(`^${first}$`)]);
      expect(nodes.a.sessions().filter((text) => text.endsWith('established'))).toHaveLength(2);
    });
    expect(nodes.a.logged.join('')).toContain('was ended by SIGKILL');
    // Until BIRD has announced its routes again, neighbours keep the earlier ones, and only once.
    await soon(() => {
      const exported = nodes.a.bird.status().sessions.map(({ state }) => state?.exportedCount);
      expect(exported).toContain(2);
      expect(nodes.b.routes()).toEqual(TOLD_BY_A);
    });

    await nodes.a.stopFollowing();
    expect(birds('a')).toEqual([]);
    expect(nodes.a.routes()).toEqual(TOLD_BY_B);
    await soon(() => expect(nodes.b.sessions()).toContain('node a at 192.0.2.1: down'));
    expect(nodes.b.routes()).toEqual(TOLD_BY_A);
  });

  test('a BIRD that answers already is used, and no second one started', async () => {
    await start({ names: [] });
    await nodes.a.startDaemon();
    await soon(() => expect(existsSync(nodes.a.socketPath)).toBe(true));
    await nodes.a.follow(see('a'), { run: 'child' });
    await soon(() => expect(nodes.a.bird.status().isReachable).toBe(true));
    expect(birds('a')).toHaveLength(1);
    await nodes.a.stopFollowing();
    expect(birds('a')).toHaveLength(1);
  });

  test('a missing program is reported, and retried', async () => {
    await start({ names: [] });
    writeFileSync(nodes.a.program, '#!/bin/sh\nexit 3\n', { mode: 0o755 });
    writeFileSync(nodes.a.configPath, 'router id 192.0.2.99;\n');
    await nodes.a.follow(see('a'), { run: 'child' });
    await soon(() => expect(nodes.a.logged.filter((line) => line.includes('exited with 3')).length).toBeGreaterThan(1));
  });
});
