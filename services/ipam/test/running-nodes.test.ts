import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { beforeEach, describe, expect, test } from 'vitest';

import { readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys, startReplica } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { ALIVE_MS, type NodeSession } from '../records/session.js';
import { assignment } from '../testing/allocations.js';
import { startIpam } from '../testing/ipam.js';
import { NOW_MS, request, session } from '../testing/records.js';

/** Releases by operators, of addresses that pods of nodes that run have. */

let store: MemoryStore;
let ipam: Ipam;
let dryRun: () => Ipam;
let lines: readonly string[];
let pass: (durationMs: number) => void;
let putSession: (name: string, rest?: Partial<NodeSession>) => Promise<unknown>;

const REGISTRATION = { ipv4: undefined, ipv6: undefined, labels: {}, interfaces: [] };

beforeEach(async () => {
  store = new MemoryStore();
  ({ ipam, dryRun, lines, pass } = await startIpam(store));
  const { updater } = await startReplica(store);
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/24', blockSizeBits: 0, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await ipam.pools.create(checked.spec, forever);
  putSession = (name, rest) =>
    updater.update(
      'test',
      (view) => {
        const { revision = 0 } = view.session(name) ?? {};
        const value = session(name, { ...view.session(name), ...rest, revision: revision + 1 });
        return { changes: [{ type: 'put', record: { kind: 'nodeSession', value } }], outcome: undefined };
      },
      { signal: forever },
    );
  for (const name of ['n1', 'n2']) {
    await ipam.nodes.register({ ...REGISTRATION, name }, forever);
    await putSession(name);
  }
});

const allocate = (containerId: string, nodeName: string) =>
  ipam.addresses.allocate(request(containerId, { nodeName }), forever);

/** The containers that have addresses, and `lease`. */
async function holders(): Promise<string[]> {
  const view = await readAll(store, keys);
  const held = view.blocks().flatMap(({ attributes }) => attributes.filter((each) => each.releasedAtMs === undefined));
  return held.map(({ handleId = '' }) => (handleId.startsWith('podwire-lease') ? 'lease' : handleId.slice(4))).sort();
}

const byText = (text: string) => ({ address: parseAddress(text)!, handleId: undefined, sequenceNumber: undefined });

const texts = (kept: readonly { attributes: { owner: Readonly<Record<string, string>> } }[]): (string | undefined)[] =>
  kept.map(({ attributes }) => attributes.owner.pod).sort();

/** Answers requests to a node, until the returned function is called. */
function answer(name: string, act: (asked: 'inventory' | 'leases') => Promise<unknown>): () => void {
  let isOver = false;
  const seen = { inventory: 0, leases: 0 };
  const run = async (): Promise<void> => {
    while (!isOver) {
      const node = (await readAll(store, keys)).node(name);
      const counts = { inventory: node?.inventoryRequestCount ?? 0, leases: node?.leaseRecallCount ?? 0 };
      for (const asked of ['inventory', 'leases'] as const) if (counts[asked] > seen[asked]) await act(asked);
      Object.assign(seen, counts);
      await new Promise((resolve) => setImmediate(resolve));
    }
  };
  void run();
  return () => (isOver = true);
}

/** Releases of an operator, each with the names of the pods that it kept. */
const RELEASES: Readonly<Record<string, (force: boolean, of?: Ipam) => Promise<(string | undefined)[]>>> = {
  DeleteNode: async (force, of = ipam) => {
    const { kept } = await of.nodes.delete({ name: 'n1', resourceVersion: '', force }, forever);
    return texts(kept);
  },
  DeletePool: async (force, of = ipam) => {
    const request = { name: 'p', resourceVersion: '', whenInUse: 'release' as const, force };
    return texts((await of.pools.delete(request, forever)).kept);
  },
  ReleaseHandle: async (force, of = ipam) => {
    const { kept } = await of.handles.release({ handleId: 'net.c1', searchesAllBlocks: false, force }, forever);
    return texts(kept);
  },
  ReleaseAddresses: async (force, of = ipam) => {
    const [result] = await of.addresses.releaseUnused([byText('10.0.0.0')], force, forever);
    return result?.state === 'inUse' ? [result.holder.owner.pod] : [];
  },
};

describe.each(Object.entries(RELEASES))('%s', (method, release) => {
  beforeEach(() => allocate('c1', 'n1'));

  test('is refused while the node of a pod runs, and names the pod', async () => {
    await expect(release(false)).rejects.toMatchObject({
      code: 'NODE_IN_USE',
      message: expect.stringContaining(
        'node n1 runs, and its pods have 1 of the addresses: default/pod-c1 on n1 (10.0.0.0); ',
      ),
    });
    expect(await holders()).toEqual(['c1']);
    expect((await readAll(store, keys)).node('n1')?.deletionTimeMs).toBeUndefined();
  });

  test('in a dry run fails as it would, asks no node, and changes nothing', async () => {
    const before = store.toString();
    await expect(release(false, dryRun())).rejects.toMatchObject({ code: 'NODE_IN_USE' });
    expect(await release(true, dryRun())).toEqual(['pod-c1']);
    pass(ALIVE_MS);
    expect(await release(false, dryRun())).toEqual([]);
    expect(store.toString()).toBe(before);
  });

  test('releases the address once nothing was heard of the node for 4 minutes', async () => {
    pass(ALIVE_MS);
    expect(await release(false)).toEqual([]);
    expect(await holders()).toEqual([]);
  });

  test('with force keeps addresses that an answering node does not return', async () => {
    const stop = answer('n1', () => putSession('n1', { reportedAtMs: NOW_MS }));
    expect(await release(true)).toEqual(['pod-c1']);
    stop();
    expect(await holders()).toEqual(['c1']);
    expect((await readAll(store, keys)).node('n1')?.deletionTimeMs).toBeUndefined();
  });

  test('with force releases the addresses of a node that does not answer', async () => {
    expect(await release(true)).toEqual([]);
    expect(await holders()).toEqual([]);
    if (method !== 'DeleteNode') expect((await readAll(store, keys)).node('n1')?.inventoryRequestCount).toBe(1);
  });

  test('with force keeps the addresses of a node that calls, but does not report', async () => {
    const stop = answer('n1', () => putSession('n1'));
    expect(await release(true)).toEqual(['pod-c1']);
    stop();
    expect(await holders()).toEqual(['c1']);
  });

  test('with force leaves the release of addresses without a pod to the node', async () => {
    const stop = answer('n1', async () => {
      await putSession('n1', { reportedAtMs: NOW_MS });
      await ipam.addresses.releaseEach([byText('10.0.0.0')], forever, { callingNode: 'n1' });
    });
    expect(await release(true)).toEqual([]);
    stop();
    expect(await holders()).toEqual([]);
  });
});

test('a pool keeps the pods of nodes that run, and loses the pods of silent nodes', async () => {
  await allocate('c1', 'n1');
  await allocate('c2', 'n2');
  await allocate('c3', 'n3');
  pass(ALIVE_MS);
  await putSession('n1');
  const stop = answer('n1', () => putSession('n1', { reportedAtMs: NOW_MS }));
  const deleted = await ipam.pools.delete(
    { name: 'p', resourceVersion: '', whenInUse: 'release', force: true },
    forever,
  );
  stop();
  expect(deleted).toMatchObject({ isGone: false, releasedAddresses: 2, holders: { inUseCount: 1 } });
  expect(await holders()).toEqual(['c1']);
});

test('a release of many nodes with sessions takes several transactions', async () => {
  const names = Array.from({ length: 12 }, (_, index) => `m${index}`);
  for (const name of names) {
    await allocate(name, name);
    await putSession(name);
  }
  pass(ALIVE_MS);
  const { releasedAddresses, isGone } = await ipam.pools.delete(
    { name: 'p', resourceVersion: '', whenInUse: 'release' },
    forever,
  );
  expect([releasedAddresses, isGone]).toEqual([12, true]);
});

describe('a lease of a node that runs', () => {
  const leased = async () => {
    const assigned = await ipam.assignments.assign(assignment('podwire-lease.n1'), forever);
    return byText(formatAddress(assigned.newAddresses[0]!.address));
  };

  test('is recalled before it is released', async () => {
    const release = await leased();
    const stop = answer('n1', () => ipam.addresses.releaseEach([release], forever, { callingNode: 'n1' }));
    expect(await ipam.addresses.releaseUnused([release], false, forever)).toMatchObject([{ state: 'released' }]);
    stop();
    expect(await holders()).toEqual([]);
  });

  test('that is not returned is kept', async () => {
    const release = await leased();
    expect(await ipam.addresses.releaseUnused([release], false, forever)).toMatchObject([{ state: 'inUse' }]);
    const { kept } = await ipam.handles.release({ handleId: 'podwire-lease.n1', searchesAllBlocks: false }, forever);
    expect(kept).toHaveLength(1);
    expect(await holders()).toEqual(['lease']);
  });

  test('counts as returned in a dry run, which does not ask the node', async () => {
    await leased();
    const { handles, pools } = dryRun();
    expect(await handles.release({ handleId: 'podwire-lease.n1', searchesAllBlocks: false }, forever)).toMatchObject({
      kept: [],
    });
    const deletion = { name: 'p', resourceVersion: '', whenInUse: 'release' } as const;
    expect(await pools.delete(deletion, forever)).toMatchObject({ kept: [] });
    expect(await holders()).toEqual(['lease']);
  });

  test('does not keep the node from being deleted', async () => {
    await leased();
    expect(await ipam.nodes.delete({ name: 'n1', resourceVersion: '' }, forever)).toMatchObject({ kept: [] });
  });
});

/** Stored in whole seconds. */
const MARKED_MS = Math.floor(NOW_MS / 1000) * 1000 - 1000;

describe('a node', () => {
  test('releases addresses of its own pods, and none of other nodes that run', async () => {
    await allocate('c1', 'n1');
    const release = [byText('10.0.0.0')];
    const releaseAs = async (callingNode: string) =>
      (await ipam.addresses.releaseEach(release, forever, { callingNode })).map(({ state }) => state);
    expect(await releaseAs('n2')).toEqual(['inUse']);
    expect(await releaseAs('n1')).toEqual(['released']);
  });

  test('that was deleted while it ran loses its session once it does not run', async () => {
    await ipam.nodes.delete({ name: 'n1', resourceVersion: '' }, forever);
    await ipam.nodes.finishDeletions(forever);
    expect((await readAll(store, keys)).session('n1')).toBeDefined();
    pass(ALIVE_MS);
    await ipam.nodes.finishDeletions(forever);
    const view = await readAll(store, keys);
    expect([view.session('n1'), view.node('n1')]).toEqual([undefined, undefined]);
    expect(view.session('n2')).toBeDefined();
  });

  describe('of an interrupted deletion', () => {
    beforeEach(async () => {
      await allocate('c1', 'n1');
      const { updater } = await startReplica(store);
      const value = { ...(await readAll(store, keys)).node('n1')!, deletionTimeMs: MARKED_MS };
      await updater.update(
        'test',
        () => ({ changes: [{ type: 'put', record: { kind: 'node', value } }], outcome: 0 }),
        {
          signal: forever,
        },
      );
    });

    test('is registered again if it answers and has pods', async () => {
      const stop = answer('n1', (asked) => putSession('n1', asked === 'inventory' ? { reportedAtMs: NOW_MS } : {}));
      await ipam.nodes.finishDeletions(forever);
      stop();
      const node = (await readAll(store, keys)).node('n1')!;
      expect([node.deletionTimeMs, node.inventoryRequestCount]).toEqual([undefined, 1]);
      expect(lines.join('')).toContain('cancelled the deletion of node n1');
      expect(await holders()).toEqual(['c1']);
    });

    test('goes with its pods if it does not answer', async () => {
      await ipam.nodes.finishDeletions(forever);
      expect((await readAll(store, keys)).node('n1')).toBeUndefined();
      expect(await holders()).toEqual([]);
    });
  });
});
