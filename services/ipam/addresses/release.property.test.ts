import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { continueAffinityRelease } from '../affinities/affinities.js';
import { addressOf } from '../records/block.js';
import { collectCooledBlock } from '../blocks/release-changes.js';
import { continueNodeRelease } from '../nodes/deletion.js';
import { continuePoolRelease } from '../pools/deletion.js';
import { attributesAt, validateBlock } from '../records/block.js';
import { address, countedHandles, releaseOutOfBand, storedHandles } from '../testing/allocations.js';
import { attachment, config, NOW_MS, poolRecord, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { allocate } from './allocate/allocate.js';
import { continueAddressRelease, continueHandleRelease, release } from './release.js';

/**
 * Random allocations and releases of every kind, with an oracle that records only the holders with their times, which
 * address was released when, and the earlier holders.
 */
interface Holding {
  readonly handle: string;
  readonly node: string;
  readonly sequenceNumber: bigint;
  readonly sinceMs: number;
}

class Oracle {
  readonly held = new Map<string, Holding>();
  readonly past: string[] = [];
  readonly cooling = new Map<string, number>();
  /** Addresses that another tool released, as `calicoctl ipam release` does, and that an endpoint names: by handle and node. */
  readonly left = new Map<string, string>();

  give(text: string, holding: Holding): void {
    expect(this.held.has(text), `${text} is held`).toBe(false);
    this.held.set(text, holding);
    this.cooling.delete(text);
    this.left.delete(`${holding.handle} ${holding.node}`);
  }

  endEndpoints(handle: string): void {
    for (const key of this.left.keys()) if (key.startsWith(`${handle} `)) this.left.delete(key);
  }

  end(matching: (text: string, holding: Holding) => boolean, nowMs: number): string[] {
    const ended = [...this.held].filter(([text, holding]) => matching(text, holding));
    for (const [text, { handle, sinceMs, sequenceNumber }] of ended) {
      this.past.push(`${text} ${handle} ${sequenceNumber} ${sinceMs} ${nowMs}`);
      this.held.delete(text);
      this.cooling.set(text, nowMs);
    }
    return ended.map(([text]) => text).sort();
  }
}

const COOLDOWN_SECONDS = 30;
const ids = fc.constantFrom('c1', 'c2', 'c3', 'c4', 'c5');
const nodes = fc.constantFrom('n1', 'n2');
const hosts = fc.integer({ min: 0, max: 9 }).map((host) => `10.0.0.${host}`);
const operation = fc.oneof(
  { weight: 6, arbitrary: fc.record({ type: fc.constant('allocate' as const), id: ids, node: nodes }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('attachment' as const), id: ids }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('handle' as const), id: ids }) },
  {
    weight: 3,
    arbitrary: fc.record({
      type: fc.constant('addresses' as const),
      wanted: fc.uniqueArray(
        fc.record({ text: hosts, id: fc.option(ids), offset: fc.option(fc.constantFrom(0n, 1n)) }),
        {
          maxLength: 4,
          selector: ({ text }) => text,
        },
      ),
    }),
  },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('other tool' as const), text: hosts }) },
  fc.record({ type: fc.constant('node' as const), node: nodes }),
  fc.record({ type: fc.constant('pool' as const) }),
  fc.record({ type: fc.constant('affinity' as const), node: nodes }),
  fc.record({ type: fc.constant('collect' as const) }),
  { weight: 2, arbitrary: fc.record({ type: fc.constant('wait' as const), seconds: fc.constantFrom(1, 29, 31) }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

class World {
  readonly oracle = new Oracle();
  readonly view: TestView;
  nowMs = NOW_MS;

  constructor(cooldownSeconds: number) {
    this.view = new TestView([poolRecord('p', '10.0.0.0/29', { blockSizeBits: 31 }), config({ cooldownSeconds })]);
  }

  run(asked: Operation): void {
    const { view, nowMs } = this;
    switch (asked.type) {
      case 'allocate':
        this.allocate(asked.id, asked.node);
        break;
      case 'attachment': {
        const { addresses } = view.apply(release(view, attachment(asked.id), nowMs));
        this.expectEnded(addresses.map(formatAddress), (_, { handle }) => handle === `net.${asked.id}`);
        this.oracle.endEndpoints(`net.${asked.id}`);
        break;
      }
      case 'handle': {
        const handleId = `net.${asked.id}`;
        const step = continueHandleRelease(view, { handleId, nowMs, searchesAllBlocks: false });
        const { addresses, state } = view.apply(step);
        expect(state).toBe('done');
        this.expectEnded(addresses.map(formatAddress), (_, { handle }) => handle === handleId);
        this.oracle.endEndpoints(handleId);
        break;
      }
      case 'other tool': {
        const holding = this.oracle.held.get(asked.text);
        if (!holding) break;
        releaseOutOfBand(view, asked.text);
        this.oracle.held.delete(asked.text);
        this.oracle.left.set(`${holding.handle} ${holding.node}`, asked.text);
        break;
      }
      case 'addresses':
        this.releaseAddresses(asked.wanted);
        break;
      case 'node':
        this.toTheEnd(() => view.apply(continueNodeRelease(view, { nodeName: asked.node, nowMs })), asked.node);
        break;
      case 'pool':
        this.toTheEnd(() => view.apply(continuePoolRelease(view, { poolName: 'p', nowMs })));
        break;
      case 'affinity': {
        const scope = { kind: 'owner', owner: { kind: 'host', name: asked.node } } as const;
        view.apply(continueAffinityRelease(view, { scope, mustBeEmpty: false, nowMs, after: undefined }));
        break;
      }
      case 'collect':
        for (const block of view.blocks()) view.apply(collectCooledBlock(view, { block, nowMs }));
        break;
      case 'wait':
        this.nowMs += asked.seconds * 1000;
    }
  }

  allocate(id: string, node: string): void {
    const { view, nowMs, oracle } = this;
    const before = view.snapshot();
    try {
      const asked = request(id, { nodeName: node, pod: undefined });
      const { endpoint, added } = view.apply(allocate(view, { request: asked, nowMs }));
      const [given] = endpoint.addresses;
      const text = formatAddress(given!.address);
      if (added.length === 0) {
        expect(oracle.held.get(text)?.handle).toBe(`net.${id}`);
        return;
      }
      const releasedMs = oracle.cooling.get(text);
      // Stamps are whole seconds.
      if (releasedMs !== undefined && view.config()!.cooldownSeconds > 0)
        expect(nowMs - releasedMs).toBeGreaterThan((COOLDOWN_SECONDS - 1) * 1000);
      oracle.give(text, { handle: `net.${id}`, node, sequenceNumber: given!.sequenceNumber, sinceMs: nowMs });
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      expect(failure.code).toBe('POOLS_EXHAUSTED');
      expect(view.snapshot()).toEqual(before);
    }
  }

  releaseAddresses(wanted: readonly { text: string; id: string | null; offset: bigint | null }[]): void {
    const { view, nowMs, oracle } = this;
    const isMeant = ({ id, offset }: (typeof wanted)[number], { handle }: Holding): boolean =>
      (id === null || `net.${id}` === handle) && (offset === null || offset === 0n);
    const releases = wanted.map(({ text, id, offset }) => ({
      address: address(text),
      handleId: id === null ? undefined : `net.${id}`,
      sequenceNumber: offset === null ? undefined : (oracle.held.get(text)?.sequenceNumber ?? 7n) + offset,
    }));
    const expected = wanted.map((each) => {
      const holding = oracle.held.get(each.text);
      return !holding ? 'notAllocated' : isMeant(each, holding) ? 'released' : 'mismatch';
    });
    const { results } = view.apply(continueAddressRelease(view, { releases, nowMs }));
    expect(results.map(({ state }) => state)).toEqual(expected);
    oracle.end((text) => wanted.some((each, index) => each.text === text && expected[index] === 'released'), nowMs);
  }

  toTheEnd(
    step: () => { state: string; addresses: readonly Parameters<typeof formatAddress>[0][] },
    node?: string,
  ): void {
    const given: string[] = [];
    for (let state = 'more'; state === 'more';) {
      const outcome = step();
      ({ state } = outcome);
      given.push(...outcome.addresses.map(formatAddress));
    }
    this.expectEnded(given, (_, holding) => node === undefined || holding.node === node);
  }

  expectEnded(given: readonly string[], matching: Parameters<Oracle['end']>[0]): void {
    expect([...given].sort()).toEqual(this.oracle.end(matching, this.nowMs));
  }

  check(): void {
    const { view, oracle } = this;
    const held = view.blocks().flatMap((block) => {
      expect(validateBlock(block, this.nowMs)).toEqual([]);
      if (block.owner) expect(view.affinity(block.owner, block.prefix)?.state).toBe('confirmed');
      return block.allocations.flatMap((_, ordinal) => {
        const attributes = attributesAt(block, ordinal);
        if (!attributes || attributes.releasedAtMs !== undefined) return [];
        const text = formatAddress(addressOf({ block, ordinal }));
        return [`${text} ${attributes.handleId} ${block.sequenceNumbers[ordinal]}`];
      });
    });
    const expected = [...oracle.held].map(
      ([text, { handle, sequenceNumber }]) => `${text} ${handle} ${sequenceNumber}`,
    );
    expect(held.sort()).toEqual(expected.sort());
    expect(storedHandles(view)).toEqual(countedHandles(view));
    const named = view
      .all('endpoint')
      .flatMap(({ value }) => value.addresses.map(({ address: each }) => formatAddress(each)));
    expect(named.sort()).toEqual([...oracle.held.keys(), ...oracle.left.values()].sort());
    for (const { value } of view.all('affinity')) expect(view.block(value.block)?.owner).toEqual(value.owner);
    const past = view.history.map(
      ({ address: each, handleId, sequenceNumber, allocatedAtMs, releasedAtMs }) =>
        `${formatPrefix(each).split('/')[0]} ${handleId} ${sequenceNumber} ${allocatedAtMs} ${releasedAtMs}`,
    );
    expect(past.sort()).toEqual([...oracle.past].sort());
  }
}

test.each([0, COOLDOWN_SECONDS])(
  'property: releases of every kind free their targets, and the history has each once (cool-down %i s)',
  (cooldownSeconds) => {
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 50 }), (operations) => {
        const world = new World(cooldownSeconds);
        for (const asked of operations) {
          world.run(asked);
          world.check();
        }
      }),
      { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
    );
  },
);
