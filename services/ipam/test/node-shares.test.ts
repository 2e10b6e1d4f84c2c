import { formatAddress, type Address } from '@podwire/shared/net/address';
import { addressAt, ordinalOf, prefixOf } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { allocate } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { leaseAddresses } from '../leases/leases.js';
import { Reallocation } from '../leases/reallocation.js';
import { attributesAt, isInGracePeriod } from '../records/block.js';
import { leaseAttributes } from '../records/lease.js';
import type { Pool } from '../records/pool.js';
import {
  attachment,
  config,
  failureOf,
  NOW_MS,
  nodeRecord,
  pool,
  poolRecord,
  request,
  reservation,
} from '../testing/records.js';
import { sessionOf } from '../testing/allocations.js';
import { TestView } from '../testing/test-view.js';

/** The share of each node in a pool, against an oracle that looks at each address of the pool. */

const GREEDY = 'n0';

const settings = fc.record({
  hostBits: fc.integer({ min: 4, max: 7 }),
  blockHostBits: fc.integer({ min: 0, max: 4 }),
  /** Whether the pool selects each of the other nodes. */
  otherNodes: fc.array(fc.boolean(), { minLength: 1, maxLength: 6 }),
  strictAffinity: fc.boolean(),
  cooldownSeconds: fc.constantFrom(0, 30),
  reservedCount: fc.constantFrom(0, 3, 9),
});
type Settings = typeof settings extends fc.Arbitrary<infer Value> ? Value : never;

const operation = fc.oneof(
  { weight: 6, arbitrary: fc.record({ type: fc.constant('allocate' as const), node: fc.constant(0) }) },
  {
    weight: 6,
    arbitrary: fc.record({
      type: fc.constant('request' as const),
      node: fc.constant(0),
      offset: fc.integer({ min: 0, max: 127 }),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      type: fc.constant('lease' as const),
      node: fc.constantFrom(0, 1),
      count: fc.integer({ min: 1, max: 20 }),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ type: fc.constant('release' as const), index: fc.nat({ max: 200 }) }),
  },
  { weight: 1, arbitrary: fc.record({ type: fc.constant('allocate' as const), node: fc.constantFrom(1, 2) }) },
  { weight: 1, arbitrary: fc.record({ type: fc.constant('wait' as const), seconds: fc.constantFrom(5, 31, 70) }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

/** Addresses that an operation took, and that were free for nodes below their share. */
interface Counts {
  /** Addresses or, with strict affinity, blocks. */
  readonly free: number;
  readonly held: ReadonlyMap<string, number>;
}

class World {
  readonly view: TestView;
  readonly pool: Pool;
  readonly isStrict: boolean;
  readonly size: number;
  readonly blockSize: number;
  readonly nodes: readonly string[];
  readonly #nodeCount: number;
  readonly #cooldownMs: number;
  readonly #reserved: number;
  nowMs = NOW_MS;
  /** Attachments by container. */
  readonly #attachments = new Map<string, { readonly node: string; readonly address: Address }>();
  /** Released addresses, and the nodes that used them. */
  readonly #cooling = new Map<string, { readonly node: string; readonly sinceMs: number }>();
  #ids = 0;

  constructor({ hostBits, blockHostBits, otherNodes, strictAffinity, cooldownSeconds, reservedCount }: Settings) {
    const nodeSelector = otherNodes.every(Boolean) ? '' : "zone == 'a'";
    const blockSizeBits = 32 - Math.min(hostBits, blockHostBits);
    this.pool = pool('p', `10.0.0.0/${32 - hostBits}`, { blockSizeBits, nodeSelector });
    this.isStrict = strictAffinity;
    this.size = 2 ** hostBits;
    this.blockSize = 2 ** (32 - blockSizeBits);
    this.#cooldownMs = cooldownSeconds * 1000;
    this.#reserved = reservedCount;
    const zones = [true, ...otherNodes];
    this.#nodeCount = zones.length;
    this.nodes = zones.flatMap((isSelected, index) => (isSelected ? [`n${index}`] : []));
    this.view = new TestView([
      { kind: 'pool', value: this.pool },
      config({ strictAffinity, cooldownSeconds }),
      reservation('r', ...Array.from({ length: reservedCount }, (_, index) => `10.0.0.${index}/32`)),
      ...zones.map((isSelected, index) => nodeRecord(`n${index}`, { labels: { zone: isSelected ? 'a' : 'b' } })),
    ]);
  }

  get share(): number {
    return Math.min(128, Math.floor(this.size / (4 * this.nodes.length)));
  }

  count(): Counts {
    return this.isStrict ? this.#countBlocks() : this.#countAddresses();
  }

  #countAddresses(): Counts {
    const held = new Map<string, number>();
    let free = 0;
    for (let offset = 0; offset < this.size; offset++) {
      const address = addressAt(this.pool.prefix, offset);
      const node = this.#nodeOf(address);
      if (node !== undefined) held.set(node, (held.get(node) ?? 0) + 1);
      else if (offset >= this.#reserved) free++;
    }
    return { free, held };
  }

  /** The node that uses the address, or used it before its cool-down. */
  #nodeOf(address: Address): string | undefined {
    const cooling = this.#cooling.get(formatAddress(address));
    if (cooling && this.nowMs - cooling.sinceMs < this.#cooldownMs) return cooling.node;
    const block = this.view.block(prefixOf(address, this.pool.blockSizeBits));
    const attributes = block && attributesAt(block, ordinalOf(block.prefix, address));
    return attributes?.releasedAtMs === undefined ? attributes?.owner.node : undefined;
  }

  #countBlocks(): Counts {
    const held = new Map<string, number>();
    let free = 0;
    for (let first = 0; first < this.size; first += this.blockSize) {
      const address = addressAt(this.pool.prefix, first);
      const block = this.view.block({ ...address, length: this.pool.blockSizeBits });
      const offsets = Array.from({ length: this.blockSize }, (_, index) => first + index);
      const isUsed = offsets.some((offset) => this.#nodeOf(addressAt(this.pool.prefix, offset)) !== undefined);
      if (block?.owner && (isUsed || isInGracePeriod(block, this.nowMs)))
        held.set(block.owner.name, (held.get(block.owner.name) ?? 0) + this.blockSize);
      else if (offsets.some((offset) => offset >= this.#reserved)) free++;
    }
    return { free, held };
  }

  /** Shortfall of a node's share, in addresses or blocks. */
  lackOf(node: string, { held }: Counts): number {
    if (!this.nodes.includes(node)) return 0;
    return Math.ceil(Math.max(0, this.share - (held.get(node) ?? 0)) / (this.isStrict ? this.blockSize : 1));
  }

  /** Reserve for all nodes but one. */
  keptFrom(node: string, counts: Counts): number {
    const otherNodes = this.nodes.filter((name) => name !== node);
    const wanted = otherNodes.reduce((sum, name) => sum + this.lackOf(name, counts), 0);
    return this.isStrict ? Math.min(wanted, Math.floor(this.size / this.blockSize / 2)) : wanted;
  }

  run(operation: Operation): void {
    const name = 'node' in operation ? `n${operation.node % this.#nodeCount}` : '';
    switch (operation.type) {
      case 'allocate':
        this.#limited(name, () => this.allocate(name));
        break;
      case 'request':
        this.#limited(name, () => this.#request(name, operation.offset % this.size));
        break;
      case 'lease':
        this.#limited(name, () => this.#lease(name, operation.count));
        break;
      case 'release':
        this.#release(operation.index);
        break;
      case 'wait':
        this.nowMs += operation.seconds * 1000;
    }
  }

  /** A node takes no more than its share, or leaves the reserve; it is refused for no other reason. */
  #limited(node: string, run: () => 'taken' | 'refused' | 'nothing'): void {
    const before = this.count();
    const result = run();
    const after = this.count();
    const kept = this.keptFrom(node, after);
    const unit = this.isStrict ? this.blockSize : 1;
    const most = this.nodes.includes(node) ? Math.ceil(this.share / unit) * unit : 0;
    const heldCount = after.held.get(node) ?? 0;
    if (heldCount > (before.held.get(node) ?? 0) && this.share > 0)
      expect(heldCount <= most || after.free >= kept, `${node} takes the reserve`).toBe(true);
    if (result === 'refused' && before.free > 0)
      expect(this.share > 0 && this.lackOf(node, before) === 0 && before.free <= this.keptFrom(node, before)).toBe(
        true,
      );
  }

  allocate(node: string, addresses: Address[] = []): 'taken' | 'refused' {
    const id = `c${this.#ids++}`;
    const asked = request(id, { nodeName: node, addresses, pools: ['p'] });
    const decide = () => allocate(this.view, { request: asked, nowMs: this.nowMs });
    const failure = attempt(decide);
    if (failure) {
      expect(['POOLS_EXHAUSTED', 'ADDRESS_IN_USE', 'ADDRESS_REFUSED']).toContain(failure.code);
      return 'refused';
    }
    const { endpoint } = this.view.apply(decide());
    this.#attachments.set(id, { node, address: endpoint.addresses[0]!.address });
    this.#cooling.delete(formatAddress(endpoint.addresses[0]!.address));
    return 'taken';
  }

  /** Refusals of requested addresses have many reasons, so that only taken addresses are compared. */
  #request(node: string, offset: number): 'taken' | 'nothing' {
    if (offset < this.#reserved) return 'nothing';
    return this.allocate(node, [addressAt(this.pool.prefix, offset)]) === 'taken' ? 'taken' : 'nothing';
  }

  #lease(node: string, count: number): 'nothing' {
    const session = sessionOf(this.view, node, 'b');
    const asked = { nodeName: node, bootId: 'b', family: 4 as const, count, session };
    const input = { request: asked, unknownNodes: { policy: 'refuse' as const }, nowMs: this.nowMs };
    const { leases } = this.view.apply(leaseAddresses(this.view, input));
    for (const { address } of leases) this.#cooling.delete(formatAddress(address));
    return 'nothing';
  }

  #release(index: number): void {
    const [id, held] = [...this.#attachments][index % Math.max(1, this.#attachments.size)] ?? [];
    if (id === undefined || !held) return;
    this.view.apply(release(this.view, attachment(id), this.nowMs));
    this.#attachments.delete(id);
    if (this.#cooldownMs > 0)
      this.#cooling.set(formatAddress(held.address), {
        node: held.node,
        sinceMs: Math.floor(this.nowMs / 1000) * 1000,
      });
  }
}

function attempt(run: () => unknown) {
  try {
    run();
    return undefined;
  } catch {
    return failureOf(run);
  }
}

test('property: whatever one node takes, the other ones get their share', () => {
  fc.assert(
    fc.property(settings, fc.array(operation, { maxLength: 250, size: 'max' }), (setting, operations) => {
      const world = new World(setting);
      for (const each of operations) world.run(each);
      const otherNodes = world.nodes.filter((name) => name !== GREEDY);
      const perNode = Math.ceil(world.share / world.blockSize);
      const isWhole = world.nodes.length * perNode <= Math.floor(world.size / world.blockSize / 2);
      const reservedBlocks = Math.floor(setting.reservedCount / world.blockSize);
      if (world.isStrict && (!isWhole || reservedBlocks > 0)) return;
      for (const node of otherNodes)
        for (let lack = world.lackOf(node, world.count()); lack > 0; lack = world.lackOf(node, world.count()))
          expect(world.allocate(node), `${node} lacks ${lack}`).toBe('taken');
    }),
    { numRuns: 60 },
  );
});

test('after a restore a node keeps the addresses of all its pods, also beyond its share', () => {
  const view = new TestView([
    poolRecord('p', '10.0.0.0/27', { blockSizeBits: 29 }),
    nodeRecord('n1'),
    nodeRecord('n2'),
  ]);
  for (let count = 0; count < 28; count++)
    view.apply(allocate(view, { request: request(`c${count}`, { nodeName: 'n1' }), nowMs: NOW_MS }));
  const attributes = leaseAttributes({ nodeName: 'n1', bootId: 'b', nowMs: NOW_MS });
  const free = addressAt(prefixOf({ family: 4, value: 0x0a000018n }, 29), 7);
  const refusal = () => new Reallocation(view, { nodeName: 'n1', nowMs: NOW_MS }).take(free, attributes);
  expect(refusal()).toContain('its last 4 free addresses are kept');
  view.put({ kind: 'storeEpoch', value: { id: 'e2', importId: '', phase: 'waited' } });
  expect(refusal()).toBeUndefined();
  view.monotonicMs += 600_000;
  expect(refusal()).toContain('kept');
});
