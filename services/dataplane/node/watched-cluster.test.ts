import { EncapsulationMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { WatchKind, WatchPhase, type WatchedChange, type WatchResponse } from '@podwire/proto/podwire/ipam/v1/watch';
import fc from 'fast-check';
import { beforeEach, describe, expect, test } from 'vitest';

import { nodeMessage, poolMessage, routeMessage } from '../testing/ipam.js';
import { readBlock, readNode, readPool } from './messages.js';
import { WatchedCluster } from './watched-cluster.js';

const {
  WATCH_PHASE_SNAPSHOT: SNAPSHOT,
  WATCH_PHASE_SNAPSHOT_COMPLETE: COMPLETE,
  WATCH_PHASE_CHANGES: CHANGES,
  WATCH_PHASE_BOOKMARK: BOOKMARK,
} = WatchPhase;

const node = (name: string, ipv4 = '192.0.2.1/24'): WatchedChange => ({
  kind: WatchKind.WATCH_KIND_NODES,
  name,
  object: { $case: 'node', value: nodeMessage(name, ipv4) },
});
const pool = (name: string, cidr = '10.65.0.0/16'): WatchedChange => ({
  kind: WatchKind.WATCH_KIND_POOLS,
  name,
  object: { $case: 'pool', value: poolMessage(name, cidr) },
});
const route = (cidr: string, nodeName = 'n1'): WatchedChange => ({
  kind: WatchKind.WATCH_KIND_ROUTES,
  name: cidr,
  object: { $case: 'route', value: routeMessage(cidr, nodeName) },
});
const gone = ({ kind, name }: WatchedChange): WatchedChange => ({ kind, name, object: undefined });

function response(phase: WatchPhase, changes: WatchedChange[] = [], rest: Partial<WatchResponse> = {}): WatchResponse {
  const resumeToken = phase === SNAPSHOT ? '' : 't';
  return { phase, reset: false, changes, resumeToken, datastoreLocked: false, ...rest };
}

/** The cluster as JSON, in order. */
function print({ cluster }: WatchedCluster): unknown {
  if (!cluster) return undefined;
  const order = (map: ReadonlyMap<string, unknown>) => [...map].sort(([a], [b]) => (a < b ? -1 : 1));
  return { nodes: order(cluster.nodes), pools: order(cluster.pools), blocks: order(cluster.blocks) };
}

const names = (watched: WatchedCluster) =>
  [watched.cluster?.nodes, watched.cluster?.pools, watched.cluster?.blocks].map((map) => [...(map?.keys() ?? [])]);

let skipped: string[];
let watched: WatchedCluster;

beforeEach(() => {
  skipped = [];
  watched = new WatchedCluster((object) => skipped.push(object));
});

describe('a snapshot', () => {
  test('is applied once it is complete', () => {
    expect(watched.apply(response(SNAPSHOT, [node('n1')], { reset: true }))).toBeUndefined();
    expect([watched.cluster, watched.resumeToken]).toEqual([undefined, '']);
    expect(watched.apply(response(COMPLETE, [pool('p'), route('10.65.0.0/26')]))).toEqual({
      blocks: 'all',
      hasOtherChanges: true,
    });
    expect(names(watched)).toEqual([['n1'], ['p'], ['10.65.0.0/26']]);
    expect(watched.resumeToken).toBe('t');
  });

  test('replaces the known state when complete, and is separate until then', () => {
    watched.apply(response(COMPLETE, [node('n1'), node('n2')], { reset: true }));
    const before = watched.cluster;
    watched.apply(response(SNAPSHOT, [node('n3')], { reset: true }));
    expect(watched.cluster).toBe(before);
    watched.apply(response(COMPLETE, [gone(node('n3')), node('n4')], { resumeToken: 'u' }));
    expect(names(watched)[0]).toEqual(['n4']);
    expect([...before!.nodes.keys()].sort()).toEqual(['n1', 'n2']);
    expect(watched.resumeToken).toBe('u');
  });

  test('that was cut is discarded, and the previous token stays', () => {
    watched.apply(response(COMPLETE, [node('n1')], { reset: true }));
    watched.apply(response(SNAPSHOT, [node('n3')], { reset: true }));
    watched.beginStream();
    expect(watched.resumeToken).toBe('t');
    watched.apply(response(CHANGES, [node('n2')]));
    expect(names(watched)[0]?.sort()).toEqual(['n1', 'n2']);
  });
});

describe('changes', () => {
  beforeEach(() => {
    watched.apply(response(COMPLETE, [node('n1'), pool('p'), route('10.65.0.0/26')], { reset: true }));
  });

  test.each<[string, WatchedChange[], readonly string[], boolean]>([
    ['a block', [route('10.65.0.64/26'), gone(route('10.65.0.0/26'))], ['10.65.0.64/26', '10.65.0.0/26'], false],
    ['a node', [node('n2')], [], true],
    ['a pool that goes', [gone(pool('p'))], [], true],
    ['everything', [pool('q'), route('10.65.0.0/26', 'n2')], ['10.65.0.0/26'], true],
  ])('of %s are reported as such', (_, changes, blocks, isFlagged) => {
    expect(watched.apply(response(CHANGES, changes))).toEqual({ blocks: new Set(blocks), hasOtherChanges: isFlagged });
  });

  test('have the token to resume from', () => {
    watched.apply(response(CHANGES, [route('10.65.0.64/26')], { resumeToken: 'next' }));
    expect(watched.resumeToken).toBe('next');
  });

  test('that are empty change nothing, as does a bookmark, which has a token', () => {
    expect(watched.apply(response(CHANGES, []))).toBeUndefined();
    expect(watched.apply(response(BOOKMARK, [], { resumeToken: 'later' }))).toBeUndefined();
    expect(watched.resumeToken).toBe('later');
  });

  test('of a kind that was not requested are ignored', () => {
    const other = { kind: WatchKind.WATCH_KIND_UNSPECIFIED, name: 'x', object: undefined };
    expect(watched.apply(response(CHANGES, [other]))).toBeUndefined();
  });
});

describe('the lock', () => {
  const locked = { datastoreLocked: true };
  const onlyLock = { blocks: new Set(), hasOtherChanges: false, hasLockChanged: true };

  test('is reported with the first complete snapshot, not before', () => {
    expect(watched.apply(response(SNAPSHOT, [node('n1')], { reset: true, ...locked }))).toBeUndefined();
    expect(watched.isDatastoreLocked).toBe(false);
    expect(watched.apply(response(COMPLETE, [], locked))).toEqual({
      blocks: 'all',
      hasOtherChanges: true,
      hasLockChanged: true,
    });
    expect(watched.isDatastoreLocked).toBe(true);
  });

  test('is reported when it changes, with every phase of a message', () => {
    watched.apply(response(COMPLETE, [node('n1')], { reset: true }));
    expect(watched.apply(response(BOOKMARK, [], locked))).toEqual(onlyLock);
    expect(watched.apply(response(BOOKMARK, [], locked))).toBeUndefined();
    expect(watched.apply(response(CHANGES, [route('10.65.0.0/26')]))).toEqual({
      ...onlyLock,
      blocks: new Set(['10.65.0.0/26']),
    });
    expect(watched.apply(response(SNAPSHOT, [node('n2')], { reset: true, ...locked }))).toEqual(onlyLock);
    expect([watched.isDatastoreLocked, names(watched)[0]]).toEqual([true, ['n1']]);
    expect(watched.apply(response(COMPLETE, [], locked))).toEqual({ blocks: 'all', hasOtherChanges: true });
  });

  test('is kept between streams', () => {
    watched.apply(response(COMPLETE, [], { reset: true, ...locked }));
    watched.beginStream();
    expect(watched.isDatastoreLocked).toBe(true);
    expect(watched.apply(response(BOOKMARK))).toEqual(onlyLock);
  });
});

describe('a message out of order', () => {
  test.each([SNAPSHOT, COMPLETE, CHANGES, BOOKMARK, WatchPhase.WATCH_PHASE_UNSPECIFIED, WatchPhase.UNRECOGNIZED])(
    'of phase %i is refused before a snapshot began',
    (phase) => {
      expect(() => watched.apply(response(phase))).toThrow(expect.objectContaining({ code: 'INTERNAL' }));
    },
  );

  test.each([CHANGES, BOOKMARK])(
    'of phase %i is refused in a snapshot, and the next stream starts with a snapshot',
    (phase) => {
      watched.apply(response(COMPLETE, [node('n1')], { reset: true }));
      watched.apply(response(SNAPSHOT, [], { reset: true }));
      expect(() => watched.apply(response(phase))).toThrow(expect.objectContaining({ code: 'INTERNAL' }));
      expect(watched.resumeToken).toBe('');
      expect(names(watched)[0]).toEqual(['n1']);
    },
  );
});

describe('an invalid object', () => {
  const bad = pool('p', 'nonsense');

  test('is skipped, logged once, and counted until it is valid', () => {
    watched.apply(response(COMPLETE, [bad, node('n1', 'x')], { reset: true }));
    expect(names(watched)).toEqual([[], [], []]);
    watched.apply(response(CHANGES, [bad]));
    expect(skipped).toEqual(['pool p', 'node n1']);
    expect(watched.skippedCount).toBe(2);
    watched.apply(response(CHANGES, [pool('p', 'worse'), gone(node('n1'))]));
    expect(skipped).toEqual(['pool p', 'node n1', 'pool p']);
    expect(watched.skippedCount).toBe(1);
    watched.apply(response(CHANGES, [pool('p')]));
    expect([watched.skippedCount, names(watched)[1]]).toEqual([0, ['p']]);
  });

  test('keeps its last valid value, in changes and in snapshots', () => {
    watched.apply(response(COMPLETE, [pool('p'), node('n1')], { reset: true }));
    const before = print(watched);
    watched.apply(response(CHANGES, [bad]));
    expect(print(watched)).toEqual(before);
    watched.apply(response(COMPLETE, [bad, node('n1')], { reset: true }));
    expect(print(watched)).toEqual(before);
    expect(skipped).toEqual(['pool p']);
    watched.apply(response(COMPLETE, [node('n1')], { reset: true }));
    expect([watched.skippedCount, names(watched)[1]]).toEqual([0, []]);
  });

  test('has an unknown encapsulation, another name, or another object', () => {
    const unknown = poolMessage('u', '10.65.0.0/16', { vxlanMode: EncapsulationMode.UNRECOGNIZED });
    const changes: WatchedChange[] = [
      { kind: WatchKind.WATCH_KIND_POOLS, name: 'u', object: { $case: 'pool', value: unknown } },
      { ...pool('p'), name: 'q' },
      { ...node('n1'), kind: WatchKind.WATCH_KIND_ROUTES },
    ];
    watched.apply(response(COMPLETE, changes, { reset: true }));
    expect(skipped).toEqual(['pool u', 'pool q', 'block n1']);
    expect(names(watched)).toEqual([[], [], []]);
  });
});

const change = fc.oneof(
  fc
    .constantFrom('n1', 'n2', 'n3')
    .chain((name) => fc.constantFrom(node(name), node(name, '192.0.2.9/24'), gone(node(name)))),
  fc.constantFrom('p', 'q').chain((name) => fc.constantFrom(pool(name), pool(name, 'fd65::/48'), gone(pool(name)))),
  fc
    .constantFrom('10.65.0.0/26', '10.65.0.64/26')
    .chain((cidr) => fc.constantFrom(route(cidr), route(cidr, 'n2'), gone(route(cidr)))),
);
const messages = fc.array(fc.array(change, { maxLength: 4 }), { minLength: 1, maxLength: 4 });
const step = fc.oneof(
  fc.record({ type: fc.constant('changes' as const), messages }),
  /** Number of messages before the cut; the last message completes the snapshot. */
  fc.record({ type: fc.constant('snapshot' as const), messages, cutAfter: fc.nat(5) }),
);

test('property: after any cut the state equals the last complete message', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 12 }), (steps) => {
      const one = new WatchedCluster(() => expect.unreachable());
      const oracle = new Map<string, WatchedChange>();
      let known = false;
      for (const each of steps) {
        one.beginStream();
        if (each.type === 'snapshot') {
          const sent = each.messages.slice(0, each.cutAfter);
          sent.forEach((changes, at) => {
            const phase = at === each.messages.length - 1 ? COMPLETE : SNAPSHOT;
            one.apply(response(phase, changes, { reset: at === 0 }));
          });
          if (sent.length < each.messages.length) continue;
          oracle.clear();
          known = true;
        } else {
          if (!known) continue;
          for (const changes of each.messages) one.apply(response(CHANGES, changes));
        }
        for (const { kind, name, object } of each.messages.flat()) {
          if (object) oracle.set(`${kind} ${name}`, { kind, name, object });
          else oracle.delete(`${kind} ${name}`);
        }
      }
      const objects = [...oracle.values()].map(({ object }) => object!).reverse();
      const fresh = {
        nodes: objects.flatMap((object) => (object.$case === 'node' ? [readNode(object.value)] : [])),
        pools: objects.flatMap((object) => (object.$case === 'pool' ? [readPool(object.value)] : [])),
        blocks: objects.flatMap((object) => (object.$case === 'route' ? [readBlock(object.value)] : [])),
      };
      if (!known) expect(one.cluster).toBeUndefined();
      else {
        const values = (map?: ReadonlyMap<string, unknown>) => expect.arrayContaining([...(map?.values() ?? [])]);
        const { nodes, pools, blocks } = one.cluster!;
        expect([nodes.size, pools.size, blocks.size]).toEqual(Object.values(fresh).map(({ length }) => length));
        expect(fresh).toEqual({ nodes: values(nodes), pools: values(pools), blocks: values(blocks) });
      }
    }),
  );
});
