import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { blocksOf } from '../records/handle-counts.js';
import { releaseHeld } from '../blocks/release-changes.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { assignTunnel, releaseTunnel } from '../nodes/tunnels.js';
import { heldAddressesIn, type Block } from '../records/block.js';
import type { IpamConfig } from '../records/config.js';
import { assign, assignment } from '../testing/allocations.js';
import { attachment, config, host, nodeRecord, NOW_MS, poolRecord, prefix, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { allocate } from './allocate/allocate.js';
import { release } from './release.js';

/**
 * Every policy at once, under random operations. An oracle records, of each address, its holder or since when it cools
 * down, and of each block the queue of its free ones; and that decides by looking at every address of every pool
 * whether there is one to be had.
 */
class Oracle {
  readonly holders = new Map<string, string>();
  readonly cooling = new Map<string, number>();
  readonly queues = new Map<string, string[]>();
  config: IpamConfig = {
    strictAffinity: false,
    autoAllocateBlocks: true,
    maxBlocksPerHostCount: 0,
    cooldownSeconds: 0,
  };
  reserved: Prefix[] = [];
  nowMs = NOW_MS;

  isReserved(address: string): boolean {
    return this.reserved.some((range) => prefixContains(range, prefix(address)));
  }

  isCooling(address: string): boolean {
    const since = this.cooling.get(address);
    return since !== undefined && this.nowMs - since < this.config.cooldownSeconds * 1000;
  }

  isFree(address: string): boolean {
    return !this.holders.has(address) && !this.isCooling(address);
  }

  /** The queue of a block, with what has cooled down at its end. */
  queueOf(cidr: string): string[] {
    const queue = this.queues.get(cidr) ?? addressesOf(cidr);
    const cold = [...this.cooling]
      .filter(([address]) => prefixContains(prefix(cidr), prefix(address)) && !this.isCooling(address))
      .sort(([a, since], [b, until]) => since - until || Number(prefix(a).value - prefix(b).value));
    for (const [address] of cold) this.cooling.delete(address);
    const all = [...queue, ...cold.map(([address]) => address)];
    this.queues.set(cidr, all);
    return all;
  }

  take(holder: string, { address, cidr, isGiven }: { address: string; cidr: string; isGiven: boolean }): void {
    expect(this.isFree(address), `${address} is free`).toBe(true);
    const queue = this.queueOf(cidr);
    if (!isGiven) expect(address).toBe(queue.find((candidate) => !this.isReserved(candidate)));
    this.queues.set(
      cidr,
      queue.filter((candidate) => candidate !== address),
    );
    this.holders.set(address, holder);
  }

  free(holder: string): string[] {
    const addresses = [...this.holders].filter(([, other]) => other === holder).map(([address]) => address);
    for (const address of addresses) {
      const cidr = [...this.queues.keys()].find((block) => prefixContains(prefix(block), prefix(address)))!;
      const queue = this.queueOf(cidr);
      this.holders.delete(address);
      if (this.config.cooldownSeconds > 0) this.cooling.set(address, Math.floor(this.nowMs / 1000) * 1000);
      else queue.push(address);
    }
    return addresses;
  }
}

function addressesOf(cidr: string): string[] {
  const range = prefix(cidr);
  const size = 2 ** ((range.family === 4 ? 32 : 128) - range.length);
  return Array.from({ length: size }, (_, i) => formatPrefix(hostPrefix(addressAt(range, i))));
}

/** Whether a node could get any address at all, found by trying each. */
function canHave(view: TestView, oracle: Oracle, { node, family }: { node: string; family: Family }): boolean {
  const zone = view.node(node)?.labels.zone;
  const pools = view
    .pools()
    .filter((pool) => pool.prefix.family === family && !pool.disabled && (pool.nodeSelector === '' || zone === 'a'));
  const blocks = view.blocks().filter((block) => pools.some((pool) => prefixContains(pool.prefix, block.prefix)));
  const owned = blocks.filter(({ owner }) => owner?.name === node).length;
  const { maxBlocksPerHostCount: cap, autoAllocateBlocks, strictAffinity } = oracle.config;
  const mayGain = autoAllocateBlocks && (cap === 0 || owned < cap);
  const isEmpty = (block: Block) => addressesOf(formatPrefix(block.prefix)).every((address) => oracle.isFree(address));
  const isOld = (block: Block) => oracle.nowMs - (block.claimTimeMs ?? 0) >= 60_000;
  return pools.some((pool) =>
    addressesOf(formatPrefix(pool.prefix)).some((address) => {
      if (!oracle.isFree(address) || oracle.isReserved(address)) return false;
      const block = blocks.find((candidate) => prefixContains(candidate.prefix, prefix(address)));
      if (!block) return mayGain;
      return block.owner?.name === node || !strictAffinity || (mayGain && isEmpty(block) && isOld(block));
    }),
  );
}

const NODES = ['n1', 'n2', 'n3'];
const IDS = ['a', 'b', 'c', 'd', 'e', 'f'];
const node = fc.constantFrom(...NODES);
const id = fc.constantFrom(...IDS);
const constant = <Type extends string>(type: Type) => fc.constant(type);

const operation = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ type: constant('allocate'), id, node, given: fc.option(fc.nat(40), { nil: undefined }) }),
  },
  { weight: 3, arbitrary: fc.record({ type: constant('assign'), id, node, count: fc.integer({ min: 1, max: 7 }) }) },
  { weight: 5, arbitrary: fc.record({ type: constant('release'), id }) },
  { weight: 2, arbitrary: fc.record({ type: constant('free'), id }) },
  { weight: 2, arbitrary: fc.record({ type: constant('tunnel'), node }) },
  { weight: 1, arbitrary: fc.record({ type: constant('untunnel'), node }) },
  { weight: 3, arbitrary: fc.record({ type: constant('wait'), ms: fc.constantFrom(1000, 10_000, 61_000) }) },
  { weight: 1, arbitrary: fc.record({ type: constant('disable'), disabled: fc.boolean() }) },
  {
    weight: 2,
    arbitrary: fc.record({
      type: constant('configure'),
      config: fc.record({
        strictAffinity: fc.boolean(),
        autoAllocateBlocks: fc.boolean(),
        maxBlocksPerHostCount: fc.constantFrom(0, 1, 2),
        cooldownSeconds: fc.constantFrom(0, 5, 30),
      }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ type: constant('reserve'), places: fc.array(fc.nat(31), { maxLength: 6 }) }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

interface Shape {
  readonly pool: string;
  readonly other: string;
  readonly blockSizeBits: number;
}

/** Few blocks, so that nodes run out of them, and blocks out of addresses. */
const SMALL: readonly Shape[] = [
  { pool: '10.0.0.0/28', other: '10.0.1.0/31', blockSizeBits: 30 },
  { pool: '10.0.0.0/29', other: '10.0.1.0/31', blockSizeBits: 32 },
  { pool: '10.0.0.0/27', other: '10.0.1.0/31', blockSizeBits: 28 },
  { pool: 'fd00::/124', other: 'fd01::/127', blockSizeBits: 126 },
  { pool: 'fd00::/125', other: 'fd01::/127', blockSizeBits: 128 },
];

/** The largest blocks. */
const LARGE: readonly Shape[] = [
  { pool: '10.0.0.0/20', other: '10.1.0.0/31', blockSizeBits: 20 },
  { pool: 'fd00::/116', other: 'fd01::/127', blockSizeBits: 116 },
];

class Run {
  readonly view: TestView;
  readonly oracle = new Oracle();
  readonly #shape: Shape;
  readonly #family: Family;

  constructor(shape: Shape) {
    this.#shape = shape;
    this.#family = prefix(shape.pool).family;
    this.view = new TestView([
      nodeRecord('n1', { labels: { zone: 'a' } }),
      nodeRecord('n2'),
      nodeRecord('n3', { labels: { zone: 'b' } }),
      poolRecord('p', shape.pool, { blockSizeBits: shape.blockSizeBits, vxlanMode: 'Always', nodeSelector: '' }),
      this.#otherPool(false),
    ]);
  }

  #otherPool(disabled: boolean) {
    const blockSizeBits = this.#family === 4 ? 31 : 127;
    return poolRecord('q', this.#shape.other, { blockSizeBits, disabled, nodeSelector: 'zone == "a"' });
  }

  step(operation: Operation): void {
    switch (operation.type) {
      case 'allocate':
        this.#allocate(operation);
        break;
      case 'assign':
        this.#assign(operation);
        break;
      case 'release':
        this.#release(operation.id);
        break;
      case 'free':
        this.#free(`h-${operation.id}`);
        break;
      case 'tunnel':
        this.#tunnel(operation.node);
        break;
      case 'untunnel':
        this.#untunnel(operation.node);
        break;
      case 'wait':
        this.oracle.nowMs += operation.ms;
        break;
      case 'disable':
        this.view.put(this.#otherPool(operation.disabled));
        break;
      case 'configure':
        this.oracle.config = operation.config;
        this.view.put(config(operation.config));
        break;
      case 'reserve':
        this.#reserve(operation.places);
        break;
    }
  }

  #release(name: string): void {
    const { view, oracle } = this;
    const { addresses } = view.apply(release(view, attachment(name), oracle.nowMs));
    expect(addresses.map(formatPrefix).sort()).toEqual(oracle.free(`net.${name}`).sort());
  }

  #untunnel(nodeName: string): void {
    const { view, oracle } = this;
    const { released } = view.apply(releaseTunnel(view, { nodeName, kind: this.#tunnelKind, nowMs: oracle.nowMs }));
    expect(released.map(formatPrefix)).toEqual(oracle.free(`tunnel-${nodeName}`));
  }

  get #tunnelKind() {
    return this.#family === 4 ? ('vxlanTunnelAddress' as const) : ('vxlanV6TunnelAddress' as const);
  }

  #allocate({ id: name, node: nodeName, given }: Extract<Operation, { type: 'allocate' }>): void {
    const { view, oracle } = this;
    const family = this.#family;
    const before = view.snapshot();
    const possible = canHave(view, oracle, { node: nodeName, family });
    const wanted = given === undefined ? undefined : hostPrefix(addressAt(prefix(this.#shape.pool), given));
    const asked = request(name, { nodeName, families: [family], addresses: wanted ? [wanted] : [] });
    try {
      const { endpoint, added } = view.apply(allocate(view, { request: asked, nowMs: oracle.nowMs }));
      if (added.length === 0) return;
      const [{ address, block } = { address: undefined, block: undefined }] = endpoint.addresses;
      const isGiven = wanted !== undefined;
      if (isGiven) expect(address!.value).toBe(wanted.value);
      else expect(possible).toBe(true);
      oracle.take(`net.${name}`, { address: formatPrefix(address!), cidr: formatPrefix(block!), isGiven });
      if (oracle.config.strictAffinity) expect(view.block(block!)?.owner?.name).toBe(nodeName);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      expect(view.snapshot()).toEqual(before);
      if (failure.code === 'POOLS_EXHAUSTED') expect(possible, failure.message).toBe(false);
      else this.#checkRefusal(failure, wanted);
    }
  }

  #checkRefusal({ code, message }: Failure, wanted: Prefix | undefined): void {
    const text = wanted && formatPrefix(wanted);
    expect(text, message).toBeDefined();
    const inPool = prefixContains(prefix(this.#shape.pool), wanted!);
    if (code === 'ADDRESS_IN_USE') expect(this.oracle.isFree(text!)).toBe(false);
    else if (code === 'ADDRESS_REFUSED') expect(this.oracle.config.strictAffinity || !inPool).toBe(true);
    else expect(code).toBe('ADDRESS_DIFFERS');
  }

  #assign({ id: name, node: nodeName, count }: Extract<Operation, { type: 'assign' }>): void {
    const { view, oracle } = this;
    const family = this.#family;
    const counts = { 4: family === 4 ? count : 0, 6: family === 6 ? count : 0 };
    const { newAddresses, blocks, short } = assign(
      view,
      assignment(`h-${name}`, { owner: host(nodeName), counts }),
      oracle.nowMs,
    );
    for (const address of newAddresses) {
      const cidr = blocks.find((block) => prefixContains(prefix(block), prefix(address)))!;
      oracle.take(`h-${name}`, { address, cidr, isGiven: false });
      if (oracle.config.strictAffinity) expect(view.block(prefix(cidr))?.owner?.name).toBe(nodeName);
    }
    expect(newAddresses.length < count).toBe(short[family] !== undefined);
    if (newAddresses.length < count)
      expect(canHave(view, oracle, { node: nodeName, family }), short[family]).toBe(false);
  }

  #free(handleId: string): void {
    const { view, oracle } = this;
    const held = blocksOf(view, view.handle(handleId)).flatMap((block) =>
      heldAddressesIn(block, (attributes) => attributes.handleId === handleId),
    );
    view.apply({ changes: releaseHeld(view, held, oracle.nowMs), outcome: undefined });
    expect(oracle.free(handleId)).toHaveLength(held.length);
  }

  #tunnel(nodeName: string): void {
    const { view, oracle } = this;
    const decide = { nodeName, kind: this.#tunnelKind, nowMs: oracle.nowMs };
    const before = view.snapshot();
    try {
      const { address, isKept } = view.apply(assignTunnel(view, decide));
      expect(view.node(nodeName)?.tunnels.get(this.#tunnelKind)?.address).toEqual(address);
      const holder = oracle.holders.get(formatPrefix(address));
      if (holder !== undefined) expect([holder, isKept]).toEqual([`tunnel-${nodeName}`, true]);
      const block = view.blocks().find((candidate) => prefixContains(candidate.prefix, address))!;
      const taking = { address: formatPrefix(address), cidr: formatPrefix(block.prefix), isGiven: false };
      if (holder === undefined) oracle.take(`tunnel-${nodeName}`, taking);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      expect(failure.code).toBe('POOLS_EXHAUSTED');
      expect(view.snapshot()).toEqual(before);
    }
  }

  #reserve(places: readonly number[]): void {
    const base = prefix(this.#shape.pool);
    this.oracle.reserved = places.map((place) => hostPrefix(addressAt(base, place)));
    const value = { name: 'r', uid: '', createTimeMs: 0, prefixes: this.oracle.reserved };
    this.view.put({ kind: 'reservation', value });
  }

  /** Everything agrees, with itself and with the oracle; a deleted block removed no other object. */
  check(): void {
    const { view, oracle } = this;
    expect(inconsistencies(view, oracle.nowMs)).toEqual([]);
    const held = view
      .blocks()
      .flatMap((block) => heldAddressesIn(block, () => true))
      .map(({ block, ordinal }) => formatPrefix(hostPrefix(addressAt(block.prefix, ordinal))));
    expect(held.sort()).toEqual([...oracle.holders.keys()].sort());
    for (const cidr of oracle.queues.keys()) {
      if (view.block(prefix(cidr))) continue;
      expect(addressesOf(cidr).filter((address) => !oracle.isFree(address))).toEqual([]);
      for (const address of addressesOf(cidr)) oracle.cooling.delete(address);
      oracle.queues.delete(cidr);
    }
  }
}

test.each([
  ['in small blocks', SMALL, { numRuns: 120, maxLength: 40 }],
  ['in blocks of 4096', LARGE, { numRuns: 3, maxLength: 8 }],
])(
  'property: every policy at once, %s, gives what the oracle allows, in its order, and refuses only what cannot be had',
  (_, shapes, { numRuns, maxLength }) => {
    const scenario = fc.record({ shape: fc.constantFrom(...shapes), steps: fc.array(operation, { maxLength }) });
    fc.assert(
      fc.property(scenario, ({ shape, steps }) => {
        const run = new Run(shape);
        for (const step of steps) {
          run.step(step);
          run.check();
        }
      }),
      { numRuns, verbose: fc.VerbosityLevel.Verbose },
    );
  },
  120_000,
);
