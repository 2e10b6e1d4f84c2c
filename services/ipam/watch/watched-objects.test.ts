import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import { takeOrdinals, type Block } from '../records/block.js';
import { block, claimedBlock, poolRecord } from '../testing/records.js';
import {
  forever,
  keys,
  query,
  readMessage,
  remove,
  startWatching,
  until,
  write,
  type WatchingReplica,
} from '../testing/watch-client.js';
import { blockRoute, isSameBlockRoute } from './watched-objects.js';

const CIDR = '10.65.0.0/26';

/** The block, with an address in use by a node, or by one without a node. */
function used(value: Block, ordinal: number, node?: string): Block {
  const owner = node === undefined ? {} : { node };
  return takeOrdinals(value, [ordinal], { handleId: `h${ordinal}`, owner, releasedAtMs: undefined });
}

describe('the route to a block', () => {
  const own = used(used(block(CIDR, 'n1'), 3, 'n1'), 5);

  test('names the owner, and only the addresses of other nodes, in order', () => {
    const route = blockRoute(used(used(own, 9, 'n3'), 7, 'n2'), 'p');
    expect(route).toEqual({
      prefix: block(CIDR, 'n1').prefix,
      poolName: 'p',
      nodeName: 'n1',
      borrowed: [
        { address: { family: 4, value: 0x0a410007n }, nodeName: 'n2' },
        { address: { family: 4, value: 0x0a410009n }, nodeName: 'n3' },
      ],
    });
  });

  test('of a block without an owner has every address with a node', () => {
    expect(blockRoute({ ...own, owner: undefined }, undefined)).toMatchObject({
      poolName: undefined,
      nodeName: undefined,
      borrowed: [{ nodeName: 'n1' }],
    });
    const virtual = { kind: 'virtual', name: 'load-balancer' } as const;
    expect(blockRoute({ ...own, owner: virtual }, 'p')).toMatchObject({ nodeName: undefined });
  });

  test('has no address that cools down after its release', () => {
    const released = { handleId: undefined, owner: { node: 'n2' }, releasedAtMs: 1 };
    expect(blockRoute(takeOrdinals(own, [7], released), 'p').borrowed).toEqual([]);
  });

  test.each<[string, boolean, Block, string | undefined]>([
    ['an allocation of the owner', true, used(own, 20, 'n1'), 'p'],
    ['an allocation without a node', true, used(own, 20), 'p'],
    ['a borrowed address', false, used(own, 20, 'n2'), 'p'],
    ['another owner', false, { ...own, owner: { kind: 'host', name: 'n2' } }, 'p'],
    ['another pool', false, own, 'q'],
    ['no pool', false, own, undefined],
  ])('after %s is unchanged: %s', (_, same, after, poolName) => {
    expect(isSameBlockRoute(blockRoute(own, 'p'), blockRoute(after, poolName))).toBe(same);
  });

  test('changes when an address moved from one borrower to another, or the borrower uses another address', () => {
    const borrowed = blockRoute(used(own, 20, 'n2'), 'p');
    expect(isSameBlockRoute(borrowed, blockRoute(used(own, 20, 'n3'), 'p'))).toBe(false);
    expect(isSameBlockRoute(borrowed, blockRoute(used(own, 21, 'n2'), 'p'))).toBe(false);
    expect(isSameBlockRoute(borrowed, blockRoute(used(own, 20, 'n2'), 'p'))).toBe(true);
  });
});

describe('a watcher of routes', () => {
  let store: MemoryStore;
  let replica: WatchingReplica;

  beforeEach(async () => {
    store = new MemoryStore();
    replica = await startWatching(store, { bookmarkAfterMs: 60_000 });
  });

  afterEach(() => replica.close());

  async function put(value: Block): Promise<void> {
    const revision = await write(store, { kind: 'block', value });
    await until(() => replica.hub.revision >= revision);
  }

  test('gets nothing for 1,000 allocations and releases in own blocks, and a message for a borrowed address', async () => {
    const empty = Array.from({ length: 16 }, (_, index) => block(`10.65.${index}.0/26`, `n${index}`));
    await write(store, poolRecord('p', '10.65.0.0/16'), ...empty.flatMap((value) => claimedBlock(value)));
    await until(() => replica.hub.revision > 0 && replica.mirror.view.pools().length === 1);
    const stream = replica.hub.watch({ query: query(), from: undefined }, forever);
    for (let phase = ''; phase !== 'snapshotComplete';) phase = readMessage((await stream.next()).value!).phase;
    const next = stream.next();
    await until(() => replica.hub.waitersCount === 1);
    const [messages, encoded] = [replica.codec.messages, replica.codec.encoded];

    const full = [...empty];
    for (let count = 0; count < 1000; count++) {
      const index = count % full.length;
      const before = full[index]!;
      full[index] = used(before, before.unallocated[0]!, `n${index}`);
      await put(full[index]);
    }
    for (let count = 0; count < 1000; count++) await put(empty[count % empty.length]!);
    expect(replica.hub.waitersCount).toBe(1);
    expect([replica.codec.messages, replica.codec.encoded]).toEqual([messages, encoded]);

    await put(used(empty[0]!, 63, 'n7'));
    expect(readMessage((await next).value!).changes).toMatchObject([{ kind: 'route', name: '10.65.0.0/26' }]);
    expect(replica.codec.messages).toBe(messages + 1);
    await stream.return();
  });

  test('gets an address that another node now uses, which the block named before', async () => {
    const own = block('10.65.0.0/26', 'n1');
    const other = { handleId: 'h', owner: { node: 'n2' }, releasedAtMs: undefined };
    const hub = replica.hub;
    const prior = await write(store, ...claimedBlock(own));
    await until(() => hub.revision >= prior);
    const stream = hub.watch({ query: query('route'), from: undefined }, forever);
    for (let phase = ''; phase !== 'snapshotComplete';) phase = readMessage((await stream.next()).value!).phase;
    const named = { ...own, attributes: [other] };
    const allocations = own.allocations.map((_, ordinal) => (ordinal === 3 ? 0 : null));
    // Like records of one process, which share unchanged parts.
    for (const value of [named, { ...named, allocations }]) {
      const changes = [{ key: keys.block(own.prefix), record: { kind: 'block', value } } as const];
      void replica.objects.observe({ type: 'changed', revision: hub.revision + 1, changes });
    }
    const { changes } = readMessage((await stream.next()).value!);
    expect(changes[0]?.object).toContain('n2');
    await stream.return();
  });

  test('gets the removal of a block, and of its pool', async () => {
    const two = [block('10.65.0.0/26', 'n1'), block('10.65.0.64/26', 'n1')];
    const pool = poolRecord('p', '10.65.0.0/16');
    const revision = await write(store, pool, ...two.flatMap((value) => claimedBlock(value)));
    await until(() => replica.hub.revision >= revision);
    const stream = replica.hub.watch({ query: query('route'), from: undefined }, forever);
    for (let phase = ''; phase !== 'snapshotComplete';) phase = readMessage((await stream.next()).value!).phase;
    await remove(store, keys.block(two[0]!.prefix));
    expect(readMessage((await stream.next()).value!).changes).toEqual([{ kind: 'route', name: '10.65.0.0/26' }]);
    await remove(store, keys.pool('p'));
    const [change] = readMessage((await stream.next()).value!).changes;
    expect(change?.name).toBe('10.65.0.64/26');
    expect(change?.object).not.toContain('poolName');
    await stream.return();
  });
});
