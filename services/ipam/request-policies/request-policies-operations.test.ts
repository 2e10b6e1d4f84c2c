import { beforeEach, describe, expect, test } from 'vitest';

import type { RevisionChanges, Store } from '../engine/store.js';
import { MemoryStore, type Operation } from '../engine/testing/memory-store.js';
import { forever } from '../engine/testing/stores.js';
import type { Ipam } from '../ipam.js';
import { checkPool } from '../pools/rules.js';
import { startIpam } from '../testing/ipam.js';
import { request } from '../testing/records.js';
import { rules } from '../testing/request-policies.js';

/** Two replicas on one datastore, of which the second receives the first's changes only when it reads the current revision. */

let first: Ipam;
let second: Ipam;
/** The second replica's reads of the datastore. */
let operations: Operation[];

class LateWatch implements Store {
  readonly #store: MemoryStore;
  readonly #wanted: Promise<void>;
  #want: () => void = () => undefined;

  constructor(store: MemoryStore) {
    this.#store = store;
    this.#wanted = new Promise((resolve) => (this.#want = resolve));
  }

  list = (...args: Parameters<Store['list']>) => this.#store.list(...args);
  scan = (...args: Parameters<Store['scan']>) => this.#store.scan(...args);
  close = () => this.#store.close();

  read(...args: Parameters<Store['read']>) {
    operations.push('read');
    return this.#store.read(...args);
  }

  revision(...args: Parameters<Store['revision']>) {
    operations.push('revision');
    this.#want();
    return this.#store.revision(...args);
  }

  commit(...args: Parameters<Store['commit']>) {
    operations.push('commit');
    return this.#store.commit(...args);
  }

  async *watch(...args: Parameters<Store['watch']>): AsyncGenerator<RevisionChanges, void, void> {
    await this.#wanted;
    yield* this.#store.watch(...args);
  }
}

beforeEach(async () => {
  const store = new MemoryStore();
  first = (await startIpam(store)).ipam;
  const checked = checkPool({ name: 'p', cidr: '10.0.0.0/26', blockSizeBits: 30, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  await first.pools.create(checked.spec, forever);
  await first.addresses.allocate(request('earlier'), forever);
  operations = [];
  second = (await startIpam(new LateWatch(store))).ipam;
  operations = [];
});

const spec = (name: string, pools: { names?: readonly string[] }) => ({
  name,
  namespaces: [],
  namespaceSelector: '',
  rules: rules({ pools }),
});
const asking = (id: string) => second.addresses.allocate(request(id, { pools: ['p'] }), forever);

describe('an allocation with a requested item', () => {
  test('costs one round trip', async () => {
    await asking('c1');
    expect(operations).toEqual(['commit']);
  });

  test('is refused by a policy that another replica created, even if the watch has not delivered it', async () => {
    await first.requestPolicies.create(spec('closed', {}), forever);
    await expect(asking('c1')).rejects.toMatchObject({ code: 'REQUEST_DENIED' });
    // The request was allowed on its own view, and lost.
    expect(operations[0]).toBe('commit');
    const after = await first.addresses.allocate(request('later'), forever);
    expect(after.endpoint.addresses.map(({ address }) => address.value & 3n)).toEqual([1n]);
  });

  test('is allowed by a policy that another replica created, though its own view forbids it', async () => {
    await first.requestPolicies.create(spec('closed', {}), forever);
    await expect(asking('c1')).rejects.toMatchObject({ code: 'REQUEST_DENIED' });
    await first.requestPolicies.create(spec('open', { names: ['p'] }), forever);
    expect((await asking('c1')).added).toEqual([4]);
    await first.requestPolicies.delete({ name: 'open', resourceVersion: '' }, forever);
    await expect(asking('c2')).rejects.toMatchObject({ code: 'REQUEST_DENIED' });
  });
});

test('an allocation without a requested item depends on no policy', async () => {
  await first.requestPolicies.create(spec('closed', {}), forever);
  await second.addresses.allocate(request('c1'), forever);
  // The first request in its view that uses the block costs the same as without policies.
  expect(operations.filter((operation) => operation === 'revision')).toEqual([]);
});

test('policies that two replicas create concurrently both exist', async () => {
  await Promise.all([
    first.requestPolicies.create(spec('a', {}), forever),
    second.requestPolicies.create(spec('b', {}), forever),
  ]);
  const { items } = await second.requestPolicies.list({ after: '', limit: 9 }, forever);
  expect(items.map(({ name }) => name)).toEqual(['a', 'b']);
});
