import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, prefixContains } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { allocate, needOf } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { addressOf } from '../blocks/holding.js';
import { collectCooledBlock } from '../blocks/release-changes.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { continueNodeRelease } from '../nodes/deletion.js';
import { attributesAt } from '../records/block.js';
import type { HistoryEntry } from '../records/history.js';
import { address, countedHandles, storedHandles } from '../testing/allocations.js';
import { attachment, config, NOW_MS, nodeRecord, poolRecord, prefix, request } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { bindAddresses } from './bindings.js';
import { leaseAddresses } from './leases.js';
import { prospectsOf, recallLeases } from './recall.js';
import { continueReturn } from './returns.js';

/**
 * Random operations of three nodes on a small pool, with an oracle that records only the holder of each address. A node's
 * calls may come late, twice, and for what it has no more: each binding and return names any allocation that ever was.
 */
interface Holding {
  readonly node: string;
  readonly sequenceNumber: bigint;
  /** The attachment; undefined for an unbound lease. */
  readonly id: string | undefined;
  readonly boot: number;
  readonly sinceMs: number;
}

/** An allocation that a node received. */
interface Known extends Pick<Holding, 'node' | 'sequenceNumber'> {
  readonly text: string;
}

const COOLDOWN_SECONDS = 30;
const RESERVED = ['10.0.0.30', '10.0.0.31'];
const SIZE = 32;

const nodes = fc.constantFrom('n1', 'n2', 'n3');
const ids = fc.constantFrom('c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8');
/** One of the current holders, or of all allocations that ever were, the latest first. */
const which = fc.oneof(
  { weight: 3, arbitrary: fc.record({ among: fc.constant('held' as const), index: fc.nat(31) }) },
  { weight: 1, arbitrary: fc.record({ among: fc.constant('known' as const), index: fc.nat(40) }) },
);
type Which = typeof which extends fc.Arbitrary<infer Value> ? Value : never;
const operation = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({ type: fc.constant('lease' as const), node: nodes, count: fc.integer({ min: 0, max: 5 }) }),
  },
  {
    weight: 6,
    arbitrary: fc.record({ type: fc.constant('bind' as const), which, id: ids, as: fc.option(nodes, { freq: 3 }) }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      type: fc.constant('return' as const),
      wanted: fc.uniqueArray(fc.record({ which, id: fc.option(ids) }), {
        maxLength: 4,
        selector: (each) => each.which,
      }),
      node: fc.option(nodes),
    }),
  },
  { weight: 5, arbitrary: fc.record({ type: fc.constant('allocate' as const), id: ids, node: nodes }) },
  { weight: 4, arbitrary: fc.record({ type: fc.constant('burst' as const), node: nodes }) },
  { weight: 3, arbitrary: fc.record({ type: fc.constant('release' as const), id: ids }) },
  fc.record({ type: fc.constant('end burst' as const) }),
  { weight: 2, arbitrary: fc.record({ type: fc.constant('recall' as const) }) },
  fc.record({ type: fc.constant('reboot' as const), node: nodes }),
  fc.record({ type: fc.constant('end node' as const), node: nodes }),
  fc.record({ type: fc.constant('collect' as const) }),
  { weight: 2, arbitrary: fc.record({ type: fc.constant('wait' as const), seconds: fc.constantFrom(1, 29, 31) }) },
  fc.record({ type: fc.constant('set clocks' as const), aheadSeconds: fc.constantFrom(-3600, -2, 0, 2, 3600) }),
);
type Operation = typeof operation extends fc.Arbitrary<infer Value> ? Value : never;

interface End {
  readonly id: string | undefined;
  readonly cools: boolean;
  readonly endedMs?: number;
}

class World {
  readonly held = new Map<string, Holding>();
  readonly cooling = new Map<string, number>();
  readonly past: string[] = [];
  /** All allocations, the latest first. */
  readonly known: Known[] = [];
  readonly boots = new Map<string, number>();
  readonly view: TestView;
  readonly cooldownSeconds: number;
  nowMs = NOW_MS;
  /** The clocks of the nodes, which bindings and returns name, against the clock of IPAM. */
  aheadMs = 0;
  bursts = 0;

  constructor(cooldownSeconds: number) {
    this.cooldownSeconds = cooldownSeconds;
    this.view = new TestView([
      poolRecord('p', '10.0.0.0/27', { blockSizeBits: 30 }),
      config({ cooldownSeconds }),
      ...['n1', 'n2', 'n3'].map((name) => nodeRecord(name)),
      {
        kind: 'reservation',
        value: { name: 'r', prefixes: RESERVED.map((each) => prefix(`${each}/32`)), uid: 'u', createTimeMs: NOW_MS },
      },
    ]);
  }

  run(asked: Operation): void {
    const { view, nowMs } = this;
    switch (asked.type) {
      case 'lease':
        this.lease(asked.node, asked.count);
        break;
      case 'bind':
        this.bind(asked.which, asked.id, asked.as);
        break;
      case 'return':
        this.giveBack(asked.wanted, asked.node);
        break;
      case 'allocate':
        this.allocate(asked.id, asked.node);
        break;
      case 'burst':
        for (let count = 0; count < 8; count++) this.allocate(`x${this.bursts++}`, asked.node);
        break;
      case 'end burst':
        for (const { id } of [...this.held.values()]) if (id?.startsWith('x')) this.release(id);
        break;
      case 'release':
        this.release(asked.id);
        break;
      case 'recall':
        this.recall();
        break;
      case 'reboot':
        this.boots.set(asked.node, this.boot(asked.node) + 1);
        break;
      case 'end node':
        while (view.apply(continueNodeRelease(view, { nodeName: asked.node, nowMs })).state === 'more');
        this.endAll(({ node }) => node === asked.node);
        break;
      case 'collect':
        for (const block of view.blocks()) view.apply(collectCooledBlock(view, { block, nowMs }));
        break;
      case 'wait':
        this.nowMs += asked.seconds * 1000;
        break;
      case 'set clocks':
        this.aheadMs = asked.aheadSeconds * 1000;
    }
  }

  boot(node: string): number {
    return this.boots.get(node) ?? 1;
  }

  give(text: string, holding: Holding): void {
    expect(this.held.has(text), `${text} is held`).toBe(false);
    expect(RESERVED).not.toContain(text);
    const releasedMs = this.cooling.get(text);
    // Stamps are whole seconds.
    if (releasedMs !== undefined) expect(this.nowMs - releasedMs).toBeGreaterThan((COOLDOWN_SECONDS - 1) * 1000);
    this.cooling.delete(text);
    this.held.set(text, holding);
    this.known.unshift({ text, node: holding.node, sequenceNumber: holding.sequenceNumber });
  }

  /** @param endedMs - by the clock of the node */
  end(text: string, { id, cools, endedMs = this.nowMs }: End): void {
    const { sequenceNumber, id: boundId, sinceMs: heldSinceMs } = this.held.get(text)!;
    // A return that has overtaken the binding says when the attachment got the address.
    const sinceMs = boundId === id ? heldSinceMs : Math.min(Math.max(endedMs - 500, heldSinceMs), this.nowMs);
    const untilMs = Math.max(Math.min(endedMs, this.nowMs), sinceMs);
    this.held.delete(text);
    if (cools && this.cooldownSeconds > 0) this.cooling.set(text, this.nowMs);
    if (id !== undefined) this.past.push(`${text} net.${id} ${sequenceNumber} ${sinceMs} ${untilMs}`);
  }

  endAll(isMeant: (holding: Holding) => boolean): void {
    for (const [text, holding] of [...this.held]) if (isMeant(holding)) this.end(text, { id: holding.id, cools: true });
  }

  leasesOf(node: string): string[] {
    return [...this.held].flatMap(([text, each]) => (each.node === node && each.id === undefined ? [text] : []));
  }

  lease(node: string, count: number): void {
    const boot = this.boot(node);
    this.endAll((each) => each.node === node && each.id === undefined && each.boot !== boot);
    const before = this.leasesOf(node);
    const foreign = this.view.blocks().filter(({ owner }) => owner && owner.name !== node);
    const leases = this.toTheEnd(node, count);
    for (const { text, sequenceNumber } of leases.filter((each) => !before.includes(each.text))) {
      this.give(text, { node, sequenceNumber, id: undefined, boot, sinceMs: this.nowMs });
      expect(foreign.some(({ prefix: each }) => prefixContains(each, address(text)))).toBe(false);
    }
    expect(leases.map(({ text }) => text).sort()).toEqual(this.leasesOf(node).sort());
    expect(leases.length).toBeLessThanOrEqual(Math.max(count, before.length));
    const freeBefore = SIZE - RESERVED.length - this.held.size + leases.length;
    if (leases.length > before.length) expect(leases.length).toBeLessThanOrEqual(freeBefore / 8);
    const records = this.view.snapshot();
    expect(this.toTheEnd(node, count)).toEqual(leases);
    expect(this.view.snapshot()).toEqual(records);
  }

  toTheEnd(node: string, count: number) {
    const { view, nowMs } = this;
    const asked = { nodeName: node, bootId: `b${this.boot(node)}`, family: 4, count } as const;
    for (;;) {
      const input = { request: asked, unknownNodes: { policy: 'refuse' }, nowMs } as const;
      const { state, leases } = view.apply(leaseAddresses(view, input));
      if (state === 'more') continue;
      expect(leases.filter(({ isOutdated }) => isOutdated)).toEqual([]);
      return leases.map(({ address: each, sequenceNumber }) => ({ text: formatAddress(each), sequenceNumber }));
    }
  }

  find({ among, index }: Which): Known | undefined {
    if (among === 'known') return this.known[index];
    const current = [...this.held].sort(([, a], [, b]) => Number(a.id !== undefined) - Number(b.id !== undefined));
    const [text, holding] = current[index % Math.max(current.length, 1)] ?? [];
    return text !== undefined && holding ? { text, ...holding } : undefined;
  }

  /** @param as - the node that calls; null for the one that has the allocation */
  bind(at: Which, id: string, as: string | null): void {
    const known = this.find(at);
    if (!known) return;
    const { view } = this;
    const { text, sequenceNumber } = known;
    const nodeName = as ?? known.node;
    const holding = this.held.get(text);
    const isSame = holding?.sequenceNumber === sequenceNumber;
    const isLease = isSame && holding.id === undefined && holding.node === nodeName;
    const isBound = isSame && holding.id === id && holding.node === nodeName;
    const hasOther = [...this.held].some(([other, each]) => each.id === id && other !== text);
    const attachedAtMs = this.nowMs + this.aheadMs - 500;
    const before = view.snapshot();
    const binding = {
      attachment: attachment(id),
      pod: { namespace: 'default', name: `pod-${id}`, uid: '' },
      netns: undefined,
      addresses: [{ address: address(text), sequenceNumber }],
      attachedAtMs,
    };
    try {
      const { endpoint } = view.apply(bindAddresses(view, { nodeName, binding, nowMs: this.nowMs }));
      expect([isLease || isBound, hasOther]).toEqual([true, false]);
      expect(endpoint.addresses).toMatchObject([{ address: address(text), sequenceNumber }]);
      const sinceMs = Math.min(Math.max(attachedAtMs, holding?.sinceMs ?? 0), this.nowMs);
      if (isLease) this.held.set(text, { ...holding, id, sinceMs });
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      expect(failure.code).toBe('ALLOCATION_MISMATCH');
      expect((isLease || isBound) && !hasOther).toBe(false);
      expect(view.snapshot()).toEqual(before);
    }
  }

  /** @param as - the node that calls; null for the one of the first allocation */
  giveBack(wanted: readonly { readonly which: Which; readonly id: string | null }[], as: string | null): void {
    const named = wanted.flatMap(({ which: at, id }) => {
      const known = this.find(at);
      return known ? [{ ...known, id: id ?? undefined }] : [];
    });
    const unique = named.filter(({ text }, index) => named.findIndex((other) => other.text === text) === index);
    const nodeName = as ?? unique[0]?.node;
    if (nodeName === undefined) return;
    const { view, nowMs } = this;
    const endedMs = nowMs + this.aheadMs;
    const expected = unique.map(({ text, sequenceNumber, id }) => {
      const holding = this.held.get(text);
      if (!holding) return 'notAllocated';
      const isLease = holding.id === undefined && holding.node === nodeName;
      const isOwn = id !== undefined && holding.id === id;
      return holding.sequenceNumber === sequenceNumber && (isLease || isOwn) ? 'released' : 'mismatch';
    });
    const returns = unique.map(({ text, sequenceNumber, id }) => ({
      allocation: { address: address(text), sequenceNumber },
      use:
        id === undefined
          ? undefined
          : { attachment: attachment(id), netns: undefined, attachedAtMs: endedMs - 500, detachedAtMs: endedMs },
    }));
    const { results } = view.apply(continueReturn(view, { nodeName, returns, nowMs }));
    expect(results.map(({ state }) => state)).toEqual(expected);
    unique.forEach(({ text, id }, index) => {
      if (expected[index] === 'released') this.end(text, { id, cools: id !== undefined, endedMs });
    });
  }

  allocate(id: string, node: string): void {
    const { view, nowMs } = this;
    const before = view.snapshot();
    const asked = request(id, { nodeName: node, pod: { namespace: 'default', name: `pod-${id}`, uid: '' } });
    try {
      const { endpoint, added } = view.apply(allocate(view, { request: asked, nowMs }));
      const [given] = endpoint.addresses;
      const text = formatAddress(given!.address);
      if (added.length === 0) expect(this.held.get(text)?.id).toBe(id);
      else this.give(text, { node, sequenceNumber: given!.sequenceNumber, id, boot: 0, sinceMs: nowMs });
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      expect(failure.code).toBe('POOLS_EXHAUSTED');
      expect(view.snapshot()).toEqual(before);
      this.expectRelief(id, node);
    }
  }

  /** Exactly the nodes with leases are asked. What they return is enough for the allocation. */
  expectRelief(id: string, node: string): void {
    const { view, nowMs } = this;
    const refused = { need: needOf(request(id, { nodeName: node }), nowMs), code: 'POOLS_EXHAUSTED' } as const;
    const { hasRoom, holders } = prospectsOf(view, refused);
    expect(hasRoom).toBe(false);
    const leases = ['n1', 'n2', 'n3'].map((nodeName) => ({ nodeName, count: this.leasesOf(nodeName).length }));
    expect(holders).toEqual(leases.filter(({ count }) => count > 0));
    if (holders.length === 0) return;
    this.recall();
    this.allocate(id, node);
    expect([...this.held.values()].some((holding) => holding.id === id)).toBe(true);
  }

  /** Every node with leases is asked, and returns them. */
  recall(): void {
    const { view, nowMs } = this;
    for (const nodeName of ['n1', 'n2', 'n3']) {
      const leases = this.leasesOf(nodeName);
      const before = view.node(nodeName)?.leaseRecallCount ?? 0;
      expect(view.apply(recallLeases(view, nodeName))).toBe(leases.length > 0);
      expect(view.node(nodeName)?.leaseRecallCount ?? 0).toBe(before + (leases.length > 0 ? 1 : 0));
      const returns = leases.map((text) => ({
        allocation: { address: address(text), sequenceNumber: this.held.get(text)!.sequenceNumber },
        use: undefined,
      }));
      view.apply(continueReturn(view, { nodeName, returns, nowMs }));
      for (const text of leases) this.end(text, { id: undefined, cools: false });
    }
  }

  release(id: string): void {
    const { view, nowMs } = this;
    view.apply(release(view, attachment(id), nowMs));
    this.endAll((holding) => holding.id === id);
  }

  check(): void {
    const { view } = this;
    expect(inconsistencies(view, this.nowMs)).toEqual([]);
    const stored: string[] = [];
    const counts = { held: 0, cooling: 0, free: 0 };
    for (const block of view.blocks())
      block.allocations.forEach((_, ordinal) => {
        const attributes = attributesAt(block, ordinal);
        if (!attributes) counts.free++;
        else if (attributes.releasedAtMs !== undefined) counts.cooling++;
        else {
          counts.held++;
          const text = formatAddress(addressOf({ block, ordinal }));
          stored.push(`${text} ${attributes.handleId} ${attributes.owner.node} ${block.sequenceNumbers[ordinal]}`);
        }
      });
    const size = view.blocks().reduce((sum, block) => sum + block.allocations.length, 0);
    expect(counts.held + counts.cooling + counts.free).toBe(size);
    const expected = [...this.held].map(([text, { node, id, sequenceNumber }]) => {
      const handle = id === undefined ? `podwire-lease.${node}` : `net.${id}`;
      return `${text} ${handle} ${node} ${sequenceNumber}`;
    });
    expect(stored.sort()).toEqual(expected.sort());
    expect(storedHandles(view)).toEqual(countedHandles(view));
    const named = view
      .all('endpoint')
      .map(
        ({ value }) =>
          `${value.attachment.containerId} ${value.addresses.map((each) => formatAddress(each.address)).join()}`,
      );
    const bound = [...this.held].flatMap(([text, { id }]) => (id === undefined ? [] : [`${id} ${text}`]));
    expect(named.sort()).toEqual(bound.sort());
    const past = view.history.map(
      ({ address: each, handleId, sequenceNumber, allocatedAtMs, releasedAtMs }) =>
        `${formatPrefix(each).split('/')[0]} ${handleId} ${sequenceNumber} ${allocatedAtMs} ${releasedAtMs}`,
    );
    expect(past.sort()).toEqual([...this.past].sort());
    expectDistinctTimes(view.history);
  }
}

/** At any moment an address had one holder. */
function expectDistinctTimes(history: readonly HistoryEntry[]): void {
  const latest = new Map<string, number>();
  for (const { address: each, allocatedAtMs = 0, releasedAtMs } of history) {
    expect(allocatedAtMs).toBeLessThanOrEqual(releasedAtMs);
    expect(allocatedAtMs).toBeGreaterThanOrEqual(latest.get(formatPrefix(each)) ?? 0);
    latest.set(formatPrefix(each), releasedAtMs);
  }
}

test.each([0, COOLDOWN_SECONDS])(
  'property: an address is leased to one node or bound to one attachment, and a late call ends or revives no other (cool-down %i s)',
  (cooldownSeconds) => {
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 60, size: 'max' }), (operations) => {
        const world = new World(cooldownSeconds);
        for (const asked of operations) {
          world.run(asked);
          world.check();
        }
      }),
      { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
    );
  },
  60_000,
);
