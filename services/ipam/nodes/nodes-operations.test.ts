import { Failure } from '@podwire/shared/failure/failure';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore, type MemoryStoreOptions } from '../engine/testing/memory-store.js';
import { forever, keys, settleEvents } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { versionOf } from '../records/versions.js';
import { startIpam } from '../testing/ipam.js';
import { NOW_MS, prefix, request } from '../testing/records.js';

async function withPool(options: MemoryStoreOptions = {}) {
  const store = new MemoryStore(options);
  const started = { store, ...(await startIpam(store)) };
  const checked = checkPool({
    name: 'p',
    cidr: '10.0.0.0/27',
    blockSizeBits: 30,
    vxlanMode: 'Always',
    disabled: false,
  });
  if (!checked.ok) throw new Error('the pool is at fault');
  await started.ipam.pools.create(checked.spec, forever);
  return started;
}

const REGISTRATION = { ipv4: undefined, ipv6: undefined, labels: {}, interfaces: [] };

function register(ipam: Ipam, name: string) {
  return ipam.nodes.register({ ...REGISTRATION, name }, forever);
}

function remove(ipam: Ipam, name: string, resourceVersion = '') {
  return ipam.nodes.delete({ name, resourceVersion }, forever);
}

const allocateOn = (ipam: Ipam, nodeName: string, id: string) =>
  ipam.addresses.allocate(request(id, { nodeName }), forever);

/** Every record of a node, or created for it. */
async function traces(store: MemoryStore, nodeName: string): Promise<string[]> {
  const view = await readAll(store, keys);
  const held = view.blocks().filter(({ attributes }) => attributes.some(({ owner }) => owner.node === nodeName));
  const named = view.snapshot().flatMap(([key, record]) => {
    const owner = record.kind === 'block' ? record.value.owner?.name : undefined;
    const node = record.kind === 'endpoint' ? record.value.nodeName : undefined;
    const isNode = record.kind === 'node' && record.value.name === nodeName;
    const isAffinity = record.kind === 'affinity' && record.value.owner.name === nodeName;
    return isNode || isAffinity || owner === nodeName || node === nodeName ? [key] : [];
  });
  return [...held.map(({ prefix }) => `addresses in ${String(prefix.value)}`), ...named];
}

const messages = (lines: readonly string[]): string[] => lines.map((line) => JSON.parse(line).msg);

describe('deleting a node', () => {
  test('returns the released addresses, and is logged once', async () => {
    const { ipam, store, lines } = await withPool();
    await register(ipam, 'n1');
    for (let i = 0; i < 10; i++) await allocateOn(ipam, 'n1', `c${i}`);
    expect(await remove(ipam, 'n1')).toEqual({ addressesCount: 10, blocksCount: 3, kept: [] });
    expect(await traces(store, 'n1')).toEqual([]);
    expect(
      messages(lines)
        .filter((text) => text.includes('node n1'))
        .slice(-1),
    ).toEqual(['deleted node n1 and released 10 addresses and 3 blocks']);
  });

  test('that fails at any of its transactions is finished by a repeat, or in the background', async () => {
    for (const type of ['fails', 'failsAfterCommit'] as const) {
      for (let failing = 0; ; failing++) {
        const { ipam, store } = await withPool();
        await register(ipam, 'n1');
        await register(ipam, 'n2');
        for (let i = 0; i < 12; i++) await allocateOn(ipam, `n${(i % 2) + 1}`, `c${i}`);
        const failure = new Failure('STORE_UNAVAILABLE', 'the datastore is unavailable');
        const commits = countCommits(store, failing, { type, failure });
        const [result] = await Promise.allSettled([remove(ipam, 'n1')]);
        if (commits.isUnused()) {
          expect(result.status).toBe('fulfilled');
          expect(failing).toBeGreaterThan(1);
          break;
        }
        expect(result).toMatchObject({ status: 'rejected', reason: failure });
        const isMarked = (await readAll(store, keys)).node('n1')?.deletionTimeMs !== undefined;
        const other = await startIpam(store);
        await other.ipam.nodes.finishDeletions(forever);
        if (isMarked || (type === 'failsAfterCommit' && failing > 0)) expect(await traces(store, 'n1')).toEqual([]);
        else await remove(other.ipam, 'n1');
        expect(await traces(store, 'n1')).toEqual([]);
        expect(inconsistencies(await readAll(store, keys), NOW_MS)).toEqual([]);
        expect((await readAll(store, keys)).endpoints()).toHaveLength(6);
      }
    }
  });

  test('that fails does not hold up the other deletions', async () => {
    const { ipam, store, lines } = await withPool();
    const cut = AbortSignal.timeout(0);
    for (const name of ['n1', 'n2']) {
      await register(ipam, name);
      await allocateOn(ipam, name, name);
      const failure = new Failure('STORE_UNAVAILABLE', 'the datastore is unavailable');
      countCommits(store, 1, { type: 'fails', failure });
      await expect(remove(ipam, name)).rejects.toBe(failure);
    }
    store.injectFault('commit', { type: 'fails', failure: new Failure('STORE_CORRUPT', 'a record of n1 is damaged') });
    await ipam.nodes.finishDeletions(forever);
    expect(await traces(store, 'n1')).not.toEqual([]);
    expect(await traces(store, 'n2')).toEqual([]);
    expect(messages(lines).join('\n')).toContain('delete node n1');
    await expect.poll(() => cut.aborted).toBe(true);
    await expect(ipam.nodes.finishDeletions(cut)).rejects.toThrow();
    await ipam.nodes.finishDeletions(forever);
    expect(await traces(store, 'n1')).toEqual([]);
  });

  test('by several replicas at once ends for all of them', async () => {
    const { ipam, store } = await withPool();
    await register(ipam, 'n1');
    for (let i = 0; i < 10; i++) await allocateOn(ipam, 'n1', `c${i}`);
    const rest = await Promise.all([startIpam(store), startIpam(store)]);
    const replicas = [ipam, ...rest.map((other) => other.ipam)];
    const results = await Promise.allSettled(replicas.map((replica) => remove(replica, 'n1')));
    for (const result of results)
      if (result.status === 'rejected') expect(result.reason).toMatchObject({ code: 'NODE_NOT_FOUND' });
    expect(results.some(({ status }) => status === 'fulfilled')).toBe(true);
    expect(await traces(store, 'n1')).toEqual([]);
  });

  test('while addresses are given to it, in any order of transactions, leaves nothing and allows none later', async () => {
    await fc.assert(
      fc.asyncProperty(fc.scheduler({ act: async (step) => step().then(settleEvents) }), async (scheduler) => {
        let ordered = false;
        const before = (): Promise<void> => (ordered ? scheduler.schedule(Promise.resolve()) : Promise.resolve());
        const { ipam, store } = await withPool({ before });
        const { ipam: other } = await startIpam(store);
        await register(ipam, 'n1');
        await allocateOn(ipam, 'n1', 'c0');
        ordered = true;
        const [deleted, ...given] = await scheduler.waitFor(
          Promise.allSettled([
            remove(ipam, 'n1'),
            allocateOn(other, 'n1', 'c1'),
            other.nodes.assignTunnel({ nodeName: 'n1', kind: 'vxlanTunnelAddress' }, forever),
            register(other, 'n1'),
          ]),
        );
        ordered = false;
        expect(deleted.status).toBe('fulfilled');
        const view = await readAll(store, keys);
        expect(inconsistencies(view, NOW_MS)).toEqual([]);
        const node = view.node('n1');
        // Operations after the deletion create the node again; otherwise nothing of it is left.
        if (!node) expect(await traces(store, 'n1')).toEqual([]);
        expect(node?.deletionTimeMs).toBeUndefined();
        for (const result of given)
          if (result.status === 'rejected')
            expect(result.reason).toMatchObject({ code: expect.stringMatching(/^NODE_(NOT_FOUND|BEING_DELETED)$/) });
      }),
      { numRuns: 150 },
    );
  }, 60_000);
});

describe('on two replicas at the same time', () => {
  test('registrations of one node make one', async () => {
    const { ipam, store } = await withPool();
    const other = await startIpam(store);
    const both = await Promise.all([ipam, other.ipam].map((replica) => register(replica, 'n1')));
    expect(both.map(({ outcome }) => outcome).sort()).toEqual(['created', 'unchanged']);
    expect((await readAll(store, keys)).nodes()).toHaveLength(1);
  });

  test('a node has one version, independent of its writer', async () => {
    const { ipam, store } = await withPool();
    const other = await startIpam(store);
    const ipv4 = { address: prefix('192.0.2.7/32'), subnetBits: 24 };
    const interfaces = [{ name: 'eth0', addresses: [ipv4] }];
    const labels = { b: '1', a: '2' };
    const told = { name: 'n1', ipv4, ipv6: undefined, labels, interfaces };
    const { listing } = await ipam.nodes.register(told, forever);
    await ipam.nodes.assignTunnel({ nodeName: 'n1', kind: 'vxlanTunnelAddress' }, forever);
    const [mine, theirs] = await Promise.all([ipam, other.ipam].map((replica) => replica.nodes.get('n1', forever)));
    expect(mine).toEqual(theirs);
    expect(versionOf(mine!.node)).toBe(versionOf(theirs!.node));
    expect(versionOf(mine!.node)).not.toBe(versionOf(listing.node));
  });

  test('of two changes of one version one is refused', async () => {
    const { ipam, store } = await withPool();
    const other = await startIpam(store);
    const { listing } = await register(ipam, 'n1');
    const version = { name: 'n1', resourceVersion: versionOf(listing.node) };
    const results = await Promise.allSettled([
      ipam.nodes.update({ ...version, labels: { a: '1' } }, forever),
      other.ipam.nodes.update({ ...version, labels: { a: '2' } }, forever),
    ]);
    expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
    expect(results.find(({ status }) => status === 'rejected')).toMatchObject({ reason: { code: 'STALE_VERSION' } });
  });
});

interface Commits {
  /** Whether there were too few commits for the fault. */
  readonly isUnused: () => boolean;
}

/** Fails a commit, after `index` successful ones. */
function countCommits(store: MemoryStore, index: number, fault: Parameters<MemoryStore['injectFault']>[1]): Commits {
  const commit = store.commit.bind(store);
  let count = 0;
  store.commit = (transaction, signal) => {
    if (count++ === index) store.injectFault('commit', fault);
    return commit(transaction, signal);
  };
  return { isUnused: () => count <= index };
}
