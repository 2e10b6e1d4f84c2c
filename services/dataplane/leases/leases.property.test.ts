import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import { createLogger } from '@podwire/shared/runtime/log';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { AttachedLink } from '../pods/kernel.js';
import type { AllocatedAddress } from '../records/record.js';
import { AttachmentRegistry } from '../records/registry.js';
import { hostLink, MemoryPool, recallView, type CallFault } from '../testing/lease-book.js';
import { MemoryRecordStore } from '../testing/memory-record-store.js';
import { podNetwork } from '../testing/pods.js';
import type { PodNetwork } from '../wiring/network.js';
import { LeaseEvents } from './lease-events.js';
import type { LeaseFile } from './lease-stock.js';
import { NO_LEASES, type LeaseBook, type StoredLeases } from './lease.js';
import { Leases } from './leases.js';

/**
 * Nodes that add and delete pods on one small pool, while answers get lost, podwire-ipam is down, processes are killed, records are
 * removed by hand, and leases are recalled. Invariants L1 to L5 and L7 of the node's leases.
 */

const NODES = 3;
const CONTAINERS = 6;
const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };

type Step =
  | { readonly type: 'add' | 'del'; readonly node: number; readonly container: number }
  | { readonly type: 'kill' | 'recall'; readonly node: number }
  | { readonly type: 'emptied'; readonly node: number; readonly withLeases: boolean }
  | { readonly type: 'delay'; readonly turns: number }
  | { readonly type: 'turns'; readonly count: number }
  | { readonly type: 'down' | 'up' }
  | { readonly type: 'wait'; readonly ms: number }
  | { readonly type: 'fault'; readonly fault: CallFault };

const node = fc.nat(NODES - 1);
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 8, arbitrary: fc.record({ type: fc.constant('add' as const), node, container: fc.nat(CONTAINERS - 1) }) },
  { weight: 6, arbitrary: fc.record({ type: fc.constant('del' as const), node, container: fc.nat(CONTAINERS - 1) }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constantFrom('kill' as const, 'recall' as const), node }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('emptied' as const), node, withLeases: fc.boolean() }) },
  { weight: 6, arbitrary: fc.record({ type: fc.constant('delay' as const), turns: fc.nat(40) }) },
  { weight: 6, arbitrary: fc.record({ type: fc.constant('turns' as const), count: fc.nat(12) }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constantFrom('down' as const, 'up' as const) }) },
  { weight: 4, arbitrary: fc.record({ type: fc.constant('wait' as const), ms: fc.constantFrom(1, 20, 600, 20_000) }) },
  {
    weight: 3,
    arbitrary: fc.record({ type: fc.constant('fault' as const), fault: fc.constantFrom<CallFault>('refused', 'lost') }),
  },
);

/** One node: what survives a kill, and its process. */
class TestNode {
  store = new MemoryRecordStore();
  /** Attachments without a record whose release waits for podwire-ipam, as in the plugin's journal. */
  readonly unreleased = new Set<string>();
  /** Attachments whose addresses only CNI's GC may find after a DEL. */
  readonly lost = new Set<string>();
  #process = 0;
  readonly #adding = new Set<string>();
  /** Interfaces in the kernel: the pods that run, by formatted attachment. */
  readonly pods = new Map<string, { readonly network: PodNetwork; readonly address: string }>();
  recallCount = 0n;
  saved = NO_LEASES;
  registry!: AttachmentRegistry;
  leases!: Leases;

  readonly name: string;
  readonly pool: MemoryPool;
  readonly clock: ManualClock;

  constructor(name: string, pool: MemoryPool, clock: ManualClock) {
    this.name = name;
    this.pool = pool;
    this.clock = clock;
  }

  async start(): Promise<void> {
    const started = ++this.#process;
    const isAlive = () => started === this.#process;
    const onStoreFailure = () => undefined;
    this.registry = new AttachmentRegistry({ store: this.store, bootId: 'boot', clock: this.clock, onStoreFailure });
    await this.registry.load();
    const save = (leases: StoredLeases) => {
      if (isAlive()) this.saved = leases;
    };
    const file: LeaseFile = { load: () => this.saved, save };
    this.leases = new Leases({
      registry: this.registry,
      book: aliveBook(this.pool.book(this.name), isAlive),
      file,
      marks: { lowCount: 1, highCount: 3 },
      events: new LeaseEvents(createLogger({ service: 'test', level: 'fatal' })),
      clock: this.clock,
      random: () => 0.5,
    });
    this.leases.load([...this.pods.values()].map(({ network, address }) => linkOf(network, address)));
    this.leases.start();
    this.recall(0n);
  }

  /** SIGKILL, and the next process. What the killed one still does reaches nothing that the next one sees. */
  async restart(): Promise<void> {
    // A binding on its way may come after the DEL of a pod whose record was removed.
    if (this.pool.inFlight.bindings > 0)
      for (const { network } of this.registry.all()) {
        const key = formatAttachment(network.attachment);
        if (!this.store.texts.has(key)) this.lost.add(key);
      }
    const left = new MemoryRecordStore();
    for (const [key, text] of this.store.texts) left.texts.set(key, text);
    this.store = left;
    await this.start();
  }

  /**
   * Someone empties the directory of records, but not while an address is returned: nothing would say to the next process that the
   * return of a killed one is still to come.
   */
  empty(withLeases: boolean): void {
    if (this.pool.inFlight.returns > 0) return;
    // If the process is killed now, the addresses of pods that were deleted before are lost.
    for (const [key, text] of this.store.texts) if (text.includes('"state":"dead"')) this.lost.add(key);
    this.store.texts.clear();
    if (withLeases) this.saved = NO_LEASES;
  }

  release(): void {
    for (const key of this.unreleased) this.pool.release(key);
    this.unreleased.clear();
  }

  recall(by: bigint): void {
    this.recallCount += by;
    this.leases.follow(recallView(this.name, this.recallCount), { blocks: new Set(), hasOtherChanges: true });
  }

  /** An ADD that is answered, or fails. */
  async add(container: number): Promise<void> {
    const attachment = podNetwork(`${this.name}-${container}`).attachment;
    const key = formatAttachment(attachment);
    if (this.pods.has(key) || this.unreleased.has(key) || this.#adding.has(key) || this.registry.get(attachment))
      return;
    const process = this.#process;
    this.#adding.add(key);
    const taken = await this.leases.take(attachment, [4], new AbortController().signal);
    this.#adding.delete(key);
    if (process !== this.#process) return;
    const lease = taken.leases?.[0];
    const isBound = lease === undefined;
    const allocated = lease ?? (this.pool.isDown ? undefined : this.pool.allocate(this.name, key));
    if (!allocated) return;
    const { address, sequenceNumber }: AllocatedAddress = allocated;
    const network = { ...podNetwork(`${this.name}-${container}`), addresses: [parse(address)] };
    const allocation = { addresses: [{ address, sequenceNumber }], nodeName: this.name, pod: undefined, isBound };
    this.pods.set(key, { network, address });
    await this.registry.record(network, IDENTITY, allocation);
    if (process !== this.#process) return;
    const record = this.registry.get(attachment);
    if (record && !isBound) this.leases.settle(record);
  }

  async del(container: number): Promise<void> {
    const attachment = podNetwork(`${this.name}-${container}`).attachment;
    if (!this.pods.delete(formatAttachment(attachment))) return;
    const dead = await this.registry.setState(attachment, 'dead');
    if (dead) {
      this.leases.settle(dead);
      return;
    }
    // Its record was removed by hand: DEL releases what podwire-ipam has for the attachment.
    await this.leases.forget(attachment);
    this.unreleased.add(formatAttachment(attachment));
    if (!this.pool.isDown) this.release();
  }
}

/** A killed process sends nothing more. */
function aliveBook(book: LeaseBook, isAlive: () => boolean): LeaseBook {
  const whileAlive = async <Result>(call: () => Promise<Result>): Promise<Result> => {
    if (!isAlive()) return new Promise<Result>(() => undefined);
    const result = await call();
    return isAlive() ? result : new Promise<Result>(() => undefined);
  };
  return {
    lease: (...args) => whileAlive(() => book.lease(...args)),
    bind: (...args) => whileAlive(() => book.bind(...args)),
    adopt: (...args) => whileAlive(() => book.adopt(...args)),
    return: (...args) => whileAlive(() => book.return(...args)),
    returnLeases: (...args) => whileAlive(() => book.returnLeases(...args)),
  };
}

function parse(text: string): Address {
  const address = parseAddress(text);
  if (!address) throw new Error(text);
  return address;
}

function linkOf(network: PodNetwork, address: string): AttachedLink {
  return { attachment: network.attachment, link: hostLink(network.hostInterfaceName), addresses: [`${address}/32`] };
}

async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** Lets the time pass: in small steps at first, as one run follows another. */
async function wait(clock: ManualClock, ms: number): Promise<void> {
  for (let left = ms, step = 10; left > 0; left -= step, step = Math.min(2 * step, 500)) {
    clock.advance(Math.min(step, left));
    await turns(3);
  }
}

test('no address is given to two pods, and podwire-ipam learns of every pod, whatever fails meanwhile', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60, size: 'max' }), async (steps) => {
      const clock = new ManualClock();
      const pool = new MemoryPool(Array.from({ length: 12 }, (_, index) => `10.65.0.${index + 1}`));
      const nodes = Array.from({ length: NODES }, (_, index) => new TestNode(`n${index}`, pool, clock));
      for (const each of nodes) await each.start();
      const pending: Promise<void>[] = [];
      for (const each of steps) {
        await apply(each, { nodes, pool, clock, pending });
        await turns(1);
        expectDistinct(nodes, pool);
      }
      pool.isDown = false;
      pool.faults.length = 0;
      for (const each of nodes) each.release();
      pool.delays.length = 0;
      // Calls of killed processes end.
      await turns(100);
      // L5: after a recall, no node keeps an address that no pod has, whatever failed before.
      for (const each of nodes) each.recall(1n);
      await wait(clock, 20_000);
      expect([...pool.holdings].filter(([, { attachment }]) => attachment === undefined)).toEqual([]);
      await wait(clock, 100_000);
      await Promise.all(pending);
      await wait(clock, 100_000);
      expectDistinct(nodes, pool);
      for (const each of nodes) {
        for (const [key, { address }] of each.pods)
          expect([address, pool.holdings.get(address)?.attachment]).toEqual([address, key]);
        await each.leases.stop();
      }
      const lost = new Set(nodes.flatMap((each) => [...each.lost]));
      const bound = [...pool.holdings].flatMap(([, { attachment }]) => attachment ?? []);
      const expected = nodes.flatMap(({ pods }) => [...pods.keys()]);
      const known = (keys: readonly string[]) => keys.filter((key) => !lost.has(key)).sort();
      expect(known(bound)).toEqual(known(expected));
      expect(pool.freeCount + pool.holdings.size).toBe(12);
    }),
    { numRuns: 300 },
  );
}, 120_000);

interface Scene {
  readonly nodes: readonly TestNode[];
  readonly pool: MemoryPool;
  readonly clock: ManualClock;
  readonly pending: Promise<void>[];
}

async function apply(each: Step, { nodes, pool, clock, pending }: Scene): Promise<void> {
  const of = 'node' in each ? nodes[each.node] : undefined;
  switch (each.type) {
    case 'add':
      if (of) pending.push(of.add(each.container));
      return;
    case 'del':
      if (of) await of.del(each.container);
      return;
    case 'kill':
      // The killed process does nothing more: its calls that were sent are executed.
      if (of) await of.restart();
      return;
    case 'emptied':
      of?.empty(each.withLeases);
      return;
    case 'delay':
      pool.delays.push(each.turns);
      return;
    case 'turns':
      return turns(each.count);
    case 'recall':
      of?.recall(1n);
      return;
    case 'down':
    case 'up':
      pool.isDown = each.type === 'down';
      return;
    case 'fault':
      pool.faults.push(each.fault);
      return;
    case 'wait':
      return wait(clock, each.ms);
  }
}

/** L1: of the pods that run, no two have one address; podwire-ipam has no other attachment for it. */
function expectDistinct(nodes: readonly TestNode[], pool: MemoryPool): void {
  const pods = nodes.flatMap(({ pods: own }) => [...own].map(([key, { address }]) => ({ key, address })));
  expect(new Set(pods.map(({ address }) => address)).size).toBe(pods.length);
  for (const { key, address } of pods) {
    const held = pool.holdings.get(address);
    expect(held, `${address} of ${key}`).toBeDefined();
    expect([undefined, key]).toContain(held?.attachment);
  }
}
