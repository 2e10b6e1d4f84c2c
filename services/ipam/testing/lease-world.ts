import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { prefixContains } from '@podwire/shared/net/prefix';
import { expect } from 'vitest';

import { addressHolder, allocationOf } from '../addresses/addresses.js';
import { allocate, needOf } from '../addresses/allocate/allocate.js';
import { release } from '../addresses/release.js';
import { requireReports } from '../blocks/epoch.js';
import { addressOf } from '../records/block.js';
import { collectCooledBlock, releaseHeld } from '../blocks/release-changes.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import { continueNodeRelease } from '../nodes/deletion.js';
import { allocatedAtMs } from '../records/attributes.js';
import { attributesAt, heldAddressesIn } from '../records/block.js';
import { isLeaseOf } from '../records/lease.js';
import type { RecordValue } from '../records/view.js';
import { address, countedHandles, storedHandles, usedBy } from './allocations.js';
import { attachment, config, failureOf, NOW_MS, nodeRecord, poolRecord, request, reservation } from './records.js';
import { TestView } from './test-view.js';
import { bindAddresses } from '../leases/bindings.js';
import { reportInventory, type Inventory } from '../leases/inventory.js';
import { leaseAddresses } from '../leases/leases.js';
import { prospectsOf, recallLeases } from '../leases/recall.js';
import { continueReturn } from '../leases/returns.js';
import { displacedBoots, openSession, type SessionName } from '../leases/session.js';
import type { Operation, Return, Which } from './lease-operations.js';
import { expectDistinctTimes, namedIn, pastOf, storedHolders } from './tenures.js';

interface Holding {
  readonly node: string;
  readonly sequenceNumber: bigint;
  /** The attachment; undefined for an unbound lease. */
  readonly id: string | undefined;
  readonly boot: number;
  readonly sinceMs: number;
}

/** An allocation that a node received. */
type Known = Pick<Holding, 'node' | 'sequenceNumber'> & { readonly text: string };

export const COOLDOWN_SECONDS = 30;
const RESERVED = ['10.0.0.30', '10.0.0.31'];
const SHARE = 2;
const NODES = ['n1', 'n2', 'n3'];

/** The state that a backup has. */
interface Backup {
  readonly records: readonly RecordValue[];
  readonly historyLength: number;
}

interface End {
  readonly id: string | undefined;
  readonly cools: boolean;
  readonly endedMs?: number;
}

/**
 * Random operations of three nodes on a small pool, with an oracle that records only the holder of each address. A node's
 * calls may come late, twice, and for former allocations: each binding and return names any allocation that ever was.
 * Another tool releases leases, processes and machines of one name follow each other, and the datastore is restored.
 */
export class World {
  readonly held = new Map<string, Holding>();
  readonly cooling = new Map<string, number>();
  readonly past: string[] = [];
  /** All allocations, the latest first. */
  readonly known: Known[] = [];
  readonly boots = new Map<string, number>();
  /** Listed leases that another tool released, with their node. */
  readonly vanished = new Map<string, string>();
  /** Numbers of the leases that another tool released. */
  readonly numbers = new Map<string, bigint>();
  /** All sessions of each node, the current one last. */
  readonly sessions = new Map<string, SessionName[]>();
  backup: Backup | undefined;
  view: TestView;
  readonly cooldownSeconds: number;
  nowMs = NOW_MS;
  openedCount = 0;
  /** The clocks of the nodes, which bindings and returns name, against the clock of IPAM. */
  aheadMs = 0;
  bursts = 0;

  constructor(cooldownSeconds: number) {
    this.cooldownSeconds = cooldownSeconds;
    this.view = new TestView([
      poolRecord('p', '10.0.0.0/27', { blockSizeBits: 30 }),
      config({ cooldownSeconds }),
      ...NODES.map((name) => nodeRecord(name)),
      reservation('r', ...RESERVED.map((each) => `${each}/32`)),
      { kind: 'storeEpoch', value: { id: 'e1', importId: '', phase: 'first' } },
    ]);
    for (const node of NODES) this.open(node, 'process');
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
      case 'open':
        this.open(asked.node, asked.by);
        break;
      case 'late call':
        this.callLate(asked.node, asked.index);
        break;
      case 'foreign release':
        this.releaseLease(asked.node, asked.index);
        break;
      case 'report':
        this.report(asked.node);
        break;
      case 'backup':
        this.backup = { records: view.snapshot().map(([, record]) => record), historyLength: view.history.length };
        break;
      case 'restore':
        this.restore(asked.order);
        break;
      case 'end node':
        while (view.apply(continueNodeRelease(view, { nodeName: asked.node, nowMs })).state === 'more');
        for (const text of this.leasesOf(asked.node, true)) this.vanish(text, asked.node);
        this.endAll(({ node }) => node === asked.node);
        break;
      case 'collect':
        for (const block of view.blocks()) view.apply(collectCooledBlock(view, { block, nowMs }));
        break;
      case 'wait':
        this.nowMs += asked.seconds * 1000;
        view.monotonicMs += asked.seconds * 1000;
        break;
      case 'set clocks':
        this.aheadMs = asked.aheadSeconds * 1000;
    }
  }

  boot(node: string): number {
    return this.boots.get(node) ?? 1;
  }

  session(node: string): SessionName {
    const { bootId, generation, revision } = this.view.session(node)!;
    return { bootId, generation, revision };
  }

  /** A process, a boot, or another machine opens the session of a node. Allocations of this millisecond are of the former machine. */
  open(node: string, by: string, last?: SessionName): void {
    const { view, nowMs } = this;
    const stored = view.session(node);
    const boot = this.boot(node) + (by === 'process' ? 0 : 1);
    const machineId = by === 'twin' ? `twin-${node}-${boot}` : (stored?.machineId ?? `machine-${node}`);
    const known = { nodeName: node, bootId: `b${boot}`, address: '', last };
    const asked = { ...known, machineId, expectedGeneration: stored?.generation ?? 0 };
    const decide = () => openSession(view, { request: asked, nowMs, epochId: `e${nowMs}-${this.openedCount++}` });
    if (by === 'twin' && stored && view.sessionAgeMs(node) < 240_000) {
      expect(failureOf(decide).code).toBe('NODE_NAME_TAKEN');
      return;
    }
    expect(view.apply(decide())).toMatchObject({ isOpened: true });
    this.boots.set(node, boot);
    for (const text of by === 'process' ? [] : this.vanishedOf(node)) {
      this.vanished.delete(text);
      // A block that was given up has lost its cool-downs.
      if (view.blocks().some((block) => prefixContains(block.prefix, address(text)))) this.cooling.set(text, nowMs);
    }
    if (by === 'twin') this.nowMs++;
    this.sessions.set(node, [...(this.sessions.get(node) ?? []), this.session(node)]);
  }

  /** No call of an earlier session is executed. */
  callLate(node: string, index: number): void {
    const { view, nowMs } = this;
    const former = this.sessions.get(node)!.slice(0, -1);
    const session = former.at(-1 - index);
    if (!session) return;
    const before = view.snapshot();
    const asked = { nodeName: node, bootId: session.bootId, family: 4, count: 8, session } as const;
    const input = { request: asked, unknownNodes: { policy: 'refuse' }, nowMs } as const;
    expect(failureOf(() => leaseAddresses(view, input)).code).toBe('SESSION_SUPERSEDED');
    const returned = { nodeName: node, session, returns: [], nowMs };
    expect(failureOf(() => continueReturn(view, returned)).code).toBe('SESSION_SUPERSEDED');
    expect(view.snapshot()).toEqual(before);
  }

  vanishedOf(node: string): string[] {
    return [...this.vanished].flatMap(([text, of]) => (of === node ? [text] : []));
  }

  /** Another tool releases a lease without asking the node. */
  releaseLease(node: string, index: number): void {
    const { view, nowMs } = this;
    const text = this.leasesOf(node, true).sort()[index];
    const held = view
      .blocks()
      .flatMap((block) => heldAddressesIn(block, isLeaseOf(node)))
      .filter((each) => formatAddress(addressOf(each)) === text);
    if (text === undefined) return;
    view.apply({ changes: releaseHeld(view, held, nowMs), outcome: undefined });
    this.vanish(text, node);
    this.end(text, { id: undefined, cools: true });
  }

  vanish(text: string, node: string): void {
    this.vanished.set(text, node);
    this.numbers.set(text, this.held.get(text)!.sequenceNumber);
  }

  inventory(node: string): Inventory {
    const nameOf = (text: string) => ({
      address: address(text),
      sequenceNumber: this.held.get(text)?.sequenceNumber ?? this.numbers.get(text) ?? 1n,
    });
    const bound = [...this.held].filter(([, each]) => each.node === node && each.id !== undefined);
    return {
      attachments: bound.map(([text, { id }]) => ({
        attachment: attachment(id!),
        pod: undefined,
        addresses: [nameOf(text)],
        isEnded: false,
      })),
      leases: [...this.leasesOf(node), ...this.vanishedOf(node)].map(nameOf),
    };
  }

  /** The node and the datastore agree, except about leases that another tool released. */
  report(node: string): void {
    const input = { nodeName: node, session: this.session(node), digest: Buffer.alloc(32), nowMs: this.nowMs };
    const reported = reportInventory(this.view, { ...input, inventory: this.inventory(node) });
    const { findings, unknown, conflicts } = this.view.apply(reported);
    const differing = findings.map(({ allocation }) => formatAddress(allocation.address)).sort();
    expect([differing, unknown, conflicts]).toEqual([this.vanishedOf(node).sort(), [], []]);
  }

  /** The nodes go on with what they have: every pod keeps its address, in any order of reports. A second report ends conflicts. */
  restore(order: readonly string[]): void {
    const { backup, nowMs } = this;
    if (!backup) return;
    const lasts = new Map(NODES.map((node) => [node, this.session(node)]));
    const history = this.view.history.slice(0, backup.historyLength);
    this.view = new TestView(backup.records);
    this.view.monotonicMs = 3_900_000; // A machine that was displaced before the backup has lost its leases.
    this.view.history.push(...history);
    this.vanished.clear();
    for (const [text, { id }] of [...this.held]) if (id === undefined) this.held.delete(text);
    for (const node of order) this.open(node, 'process', lasts.get(node));
    for (const node of order) {
      const inventory = { ...this.inventory(node), leases: [] };
      const input = { nodeName: node, digest: Buffer.alloc(32), nowMs };
      const reported = reportInventory(this.view, { ...input, session: this.session(node), inventory });
      const { unknown } = this.view.apply(reported);
      const returns = unknown.map(({ allocation, attachment: of }) => ({
        allocation,
        use: of && { attachment: of, netns: undefined, attachedAtMs: undefined, detachedAtMs: nowMs },
      }));
      for (let done = 0; done < returns.length;) {
        const left = { nodeName: node, session: this.session(node), returns: returns.slice(done), nowMs };
        done += this.view.apply(continueReturn(this.view, left)).results.length;
      }
    }
    expect(() => requireReports(this.view)).not.toThrow();
    this.intrude();
    for (const node of order) this.bindAll(node);
    this.release('intruder');
    this.adopt();
    for (const node of order) this.report(node);
  }

  /** A new pod gets no address that a pod has, bound or not. */
  intrude(): void {
    for (const nodeName of NODES) {
      const asked = request('intruder', { nodeName });
      try {
        const { endpoint } = this.view.apply(allocate(this.view, { request: asked, nowMs: this.nowMs }));
        for (const each of endpoint.addresses) expect(this.held.has(formatAddress(each.address))).toBe(false);
      } catch (failure) {
        expect(failure).toMatchObject({ code: 'POOLS_EXHAUSTED' });
      }
    }
  }

  bindAll(node: string): void {
    const { view, nowMs } = this;
    for (const { attachment: of, addresses } of this.inventory(node).attachments) {
      const pod = { namespace: 'default', name: `pod-${of.containerId}`, uid: '' };
      const binding = { attachment: of, pod, netns: undefined, addresses, attachedAtMs: nowMs };
      view.apply(bindAddresses(view, { nodeName: node, session: this.session(node), binding, nowMs }));
    }
  }

  /** Numbers, cool-downs and history are as the restored datastore has them. */
  adopt(): void {
    this.cooling.clear();
    for (const block of this.view.blocks())
      block.allocations.forEach((_, ordinal) => {
        const attributes = attributesAt(block, ordinal);
        const text = formatAddress(addressOf({ block, ordinal }));
        if (attributes?.releasedAtMs !== undefined) this.cooling.set(text, attributes.releasedAtMs);
        const holding = this.held.get(text);
        const sequenceNumber = block.sequenceNumbers[ordinal] ?? 0n;
        const sinceMs = (attributes && allocatedAtMs(attributes)) ?? this.nowMs;
        if (holding && attributes) this.held.set(text, { ...holding, sequenceNumber, sinceMs });
      });
    for (const node of NODES)
      for (const { address: each, sequenceNumber } of this.view.session(node)!.leases) {
        this.vanished.set(formatAddress(each), node);
        this.numbers.set(formatAddress(each), sequenceNumber);
      }
    this.past.splice(0, this.past.length, ...this.view.history.map(pastOf));
  }

  /** @param isBack - whether the node takes the address back, which it has had all the time */
  give(text: string, holding: Holding, isBack = false): void {
    expect(this.held.has(text), `${text} is held`).toBe(false);
    expect(RESERVED).not.toContain(text);
    if (isBack) expect([undefined, holding.node]).toContain(this.vanished.get(text));
    else expect(this.vanished.has(text), `${text} is listed`).toBe(false);
    this.vanished.delete(text);
    const releasedMs = this.cooling.get(text);
    // Stamps are whole seconds.
    if (releasedMs !== undefined && !isBack)
      expect(this.nowMs - releasedMs).toBeGreaterThan((this.cooldownSeconds - 1) * 1000);
    this.cooling.delete(text);
    this.held.set(text, holding);
    this.known.unshift({ text, node: holding.node, sequenceNumber: holding.sequenceNumber });
  }

  /** @param endedMs - by the clock of the node @returns when */
  end(text: string, { id, cools, endedMs = this.nowMs }: End): number {
    const { sequenceNumber, id: boundId, sinceMs: heldSinceMs } = this.held.get(text)!;
    // A return that has overtaken the binding says when the attachment got the address.
    const sinceMs = boundId === id ? heldSinceMs : Math.min(Math.max(endedMs - 500, heldSinceMs), this.nowMs);
    const untilMs = Math.max(Math.min(endedMs, this.nowMs), sinceMs);
    this.held.delete(text);
    if (cools) this.cooling.set(text, this.nowMs);
    if (id !== undefined) this.past.push(`${text} net.${id} ${sequenceNumber} ${sinceMs} ${untilMs}`);
    return untilMs;
  }

  endAll(isMeant: (holding: Holding) => boolean): void {
    for (const [text, holding] of [...this.held]) if (isMeant(holding)) this.end(text, { id: holding.id, cools: true });
  }

  /** @param isCurrent - without leases of former boots */
  leasesOf(node: string, isCurrent = false): string[] {
    return [...this.held].flatMap(([text, each]) => {
      const isLease = each.node === node && each.id === undefined;
      return isLease && (!isCurrent || each.boot === this.boot(node)) ? [text] : [];
    });
  }

  /** Whether the boot is of a machine that another one replaced a short time ago. */
  isDisplaced(node: string, boot: number): boolean {
    return displacedBoots(this.view, node).has(`b${boot}`);
  }

  lease(node: string, count: number): void {
    const boot = this.boot(node);
    this.endAll(
      (each) => each.node === node && each.id === undefined && each.boot !== boot && !this.isDisplaced(node, each.boot),
    );
    const vanished = this.vanishedOf(node);
    const before = [...this.leasesOf(node), ...vanished];
    const foreign = this.view.blocks().filter(({ owner }) => owner && owner.name !== node);
    const leases = this.toTheEnd(node, count);
    for (const { text, sequenceNumber } of leases.filter((each) => vanished.includes(each.text)))
      this.give(text, { node, sequenceNumber, id: undefined, boot, sinceMs: this.nowMs }, true);
    expect(this.vanishedOf(node)).toEqual([]);
    for (const { text, sequenceNumber } of leases.filter((each) => !before.includes(each.text))) {
      this.give(text, { node, sequenceNumber, id: undefined, boot, sinceMs: this.nowMs });
      expect(foreign.some(({ prefix: each }) => prefixContains(each, address(text)))).toBe(false);
    }
    expect(leases.map(({ text }) => text).sort()).toEqual(this.leasesOf(node, true).sort());
    expect(leases.length).toBeLessThanOrEqual(Math.max(count, before.length));
    const freeBefore = 32 - RESERVED.length - this.held.size + leases.length;
    if (leases.length > before.length) expect(leases.length).toBeLessThanOrEqual(freeBefore / 8);
    const records = this.view.snapshot();
    expect(this.toTheEnd(node, count)).toEqual(leases);
    expect(this.view.snapshot()).toEqual(records);
  }

  toTheEnd(node: string, count: number) {
    const { view, nowMs } = this;
    for (;;) {
      const session = this.session(node);
      const request = { nodeName: node, bootId: session.bootId, family: 4, count, session } as const;
      const step = leaseAddresses(view, { request, unknownNodes: { policy: 'refuse' }, nowMs });
      const { state, leases } = view.apply(step);
      if (state === 'more') continue;
      for (const each of leases) expect(each.isOutdated).toBe(view.lessee(each.address, node) !== undefined);
      return leases.map(({ address: each, sequenceNumber }) => ({ text: formatAddress(each), sequenceNumber }));
    }
  }

  find({ among, index }: Which): Known | undefined {
    if (among === 'known') return this.known[index];
    const current = [...this.held].sort(([, a], [, b]) => Number(a.id !== undefined) - Number(b.id !== undefined));
    const [text, holding] = current[index % Math.max(current.length, 1)] ?? [];
    return text !== undefined && holding ? { text, ...holding } : undefined;
  }

  /** @param as - the node that calls; null for the holder of the allocation */
  bind(at: Which, id: string, as: string | null): void {
    const known = this.find(at);
    if (!known) return;
    const [{ view }, { text, sequenceNumber }] = [this, known];
    const nodeName = as ?? known.node;
    const holding = this.held.get(text);
    const isFree = !holding && [undefined, nodeName].includes(this.vanished.get(text));
    const isLease = holding?.node === nodeName && holding.id === undefined;
    const isBound = holding?.node === nodeName && holding.id === id;
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
      const { endpoint } = view.apply(
        bindAddresses(view, { nodeName, session: this.session(nodeName), binding, nowMs: this.nowMs }),
      );
      expect([isLease || isBound || isFree, hasOther]).toEqual([true, false]);
      const [{ sequenceNumber: current } = { sequenceNumber: 0n }] = endpoint.addresses;
      expect(endpoint.addresses).toMatchObject([{ address: address(text) }]);
      if (holding) expect(current).toBe(holding.sequenceNumber);
      else this.give(text, { node: nodeName, sequenceNumber: current, id, boot: 0, sinceMs: this.nowMs }, true);
      const sinceMs = Math.min(Math.max(attachedAtMs, holding?.sinceMs ?? 0), this.nowMs);
      if (isLease) this.held.set(text, { ...holding, id, sinceMs });
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      expect(failure.code).toBe('ALLOCATION_MISMATCH');
      const isKept = failure.message.includes('kept for') && usedBy(view, nodeName) >= SHARE;
      expect((isLease || isBound || (isFree && !isKept)) && !hasOther).toBe(false);
      expect(view.snapshot()).toEqual(before);
    }
  }

  /** @param as - the node that calls; null for the holder of the first allocation */
  giveBack(wanted: readonly Return[], as: string | null): void {
    const named = wanted.flatMap(({ which: at, id, isKept }) => {
      const known = this.find(at);
      return known ? [{ ...known, id: id ?? undefined, isKept: isKept && id !== null }] : [];
    });
    const unique = named.filter(({ text }, index) => named.findIndex((other) => other.text === text) === index);
    const nodeName = as ?? unique[0]?.node;
    if (nodeName === undefined) return;
    const { view, nowMs } = this;
    const endedMs = nowMs + this.aheadMs;
    // Another tool released the lease of a pod: it is allocated again, so that it cools down after the pod.
    const isRetaken = ({ text, id, isKept }: Pick<(typeof unique)[number], 'text' | 'id' | 'isKept'>): boolean =>
      id !== undefined && !isKept && !this.held.has(text) && this.vanished.get(text) === nodeName;
    const retaken = unique.filter(isRetaken);
    const expected = unique.map(({ text, sequenceNumber, id, isKept }) => {
      const holding = this.held.get(text);
      if (isRetaken({ text, id, isKept })) return 'released';
      if (!holding) return 'notAllocated';
      const isLease = holding.id === undefined && holding.node === nodeName;
      if (isLease && id !== undefined && !isKept) return 'released';
      const isOwner = isLease || (id !== undefined && holding.id === id);
      return isOwner && holding.sequenceNumber === sequenceNumber ? 'released' : 'mismatch';
    });
    const times = { attachedAtMs: endedMs - 500, detachedAtMs: endedMs };
    const returns = unique.map(({ text, sequenceNumber, id, isKept }) => ({
      allocation: { address: address(text), sequenceNumber },
      use: id === undefined ? undefined : { attachment: attachment(id), netns: undefined, isKept, ...times },
    }));
    const step = () => view.apply(continueReturn(view, { nodeName, session: this.session(nodeName), returns, nowMs }));
    if (retaken.length > 0) expect(step().results).toEqual([]);
    for (const { text } of retaken) {
      const { sequenceNumber } = addressHolder(allocationOf(view, address(text))!);
      this.give(
        text,
        { node: nodeName, sequenceNumber, id: undefined, boot: this.boot(nodeName), sinceMs: nowMs },
        true,
      );
    }
    const { results, leaseNumbers } = step();
    expect(results.map(({ state }) => state)).toEqual(expected);
    unique.forEach(({ text, sequenceNumber, id, isKept }, index) => {
      if (expected[index] === 'released') {
        const sinceMs = this.end(text, { id, cools: id !== undefined && !isKept, endedMs });
        const kept = { node: nodeName, sequenceNumber: leaseNumbers[index]!, id: undefined, sinceMs };
        expect(kept.sequenceNumber > sequenceNumber).toBe(isKept);
        if (isKept) this.held.set(text, { ...kept, boot: this.boot(nodeName) });
      }
      const isListed = this.vanished.get(text) === nodeName && this.numbers.get(text) === sequenceNumber;
      if (expected[index] === 'notAllocated' && !isKept && isListed) this.vanished.delete(text);
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
      expect(failure).toMatchObject({ code: 'POOLS_EXHAUSTED' });
      expect(view.snapshot()).toEqual(before);
      this.expectRelief(id, node);
    }
  }

  /** Exactly the nodes with leases are asked, unless the leases are kept for other nodes. Their returns are enough. */
  expectRelief(id: string, node: string): void {
    const { view, nowMs } = this;
    const refused = { need: needOf(request(id, { nodeName: node }), nowMs), code: 'POOLS_EXHAUSTED' } as const;
    const { hasRoom, holders } = prospectsOf(view, refused);
    expect(hasRoom).toBe(false);
    const countOf = (name: string) =>
      Math.max(this.leasesOf(name).length, this.leasesOf(name, true).length + this.vanishedOf(name).length);
    const leases = NODES.map((nodeName) => ({ nodeName, count: countOf(nodeName) })).filter(({ count }) => count > 0);
    if (usedBy(view, node) < SHARE) expect(holders).toEqual(leases);
    for (const { nodeName, count } of holders) expect(count).toBeLessThanOrEqual(countOf(nodeName));
    // Addresses that another tool released may cool down.
    const isCooling = holders.some((each) => this.vanishedOf(each.nodeName).some((text) => this.cooling.has(text)));
    if (isCooling || holders.every(({ nodeName }) => this.leasesOf(nodeName).length === 0)) return;
    this.recall();
    this.allocate(id, node);
    expect([...this.held.values()].some((holding) => holding.id === id)).toBe(true);
  }

  /** Every node with leases is asked, and returns them. */
  recall(): void {
    const { view, nowMs } = this;
    for (const nodeName of NODES) {
      const leases = this.leasesOf(nodeName);
      const all = [...leases, ...this.vanishedOf(nodeName)];
      const before = view.node(nodeName)?.leaseRecallCount ?? 0;
      expect(view.apply(recallLeases(view, nodeName))).toBe(all.length > 0);
      expect(view.node(nodeName)?.leaseRecallCount ?? 0).toBe(before + (all.length > 0 ? 1 : 0));
      const returns = all.map((text) => ({
        allocation: {
          address: address(text),
          sequenceNumber: this.held.get(text)?.sequenceNumber ?? this.numbers.get(text)!,
        },
        use: undefined,
      }));
      view.apply(continueReturn(view, { nodeName, session: this.session(nodeName), returns, nowMs }));
      for (const text of leases) this.end(text, { id: undefined, cools: false });
      for (const text of all) this.vanished.delete(text);
    }
  }

  release(id: string): void {
    this.view.apply(release(this.view, attachment(id), this.nowMs));
    this.endAll((holding) => holding.id === id);
  }

  check(): void {
    const { view } = this;
    expect(inconsistencies(view, this.nowMs)).toEqual([]);
    const expected = [...this.held].map(([text, { node, id, sequenceNumber }]) => {
      const handle = id === undefined ? `podwire-lease.${node}` : `net.${id}`;
      return `${text} ${handle} ${node} ${sequenceNumber}`;
    });
    expect(storedHolders(view.blocks()).sort()).toEqual(expected.sort());
    expect(storedHandles(view)).toEqual(countedHandles(view));
    const named = view.all('endpoint').map(({ value }) => namedIn(value));
    expect(named.sort()).toEqual(
      [...this.held].flatMap(([text, { id }]) => (id === undefined ? [] : [`${id} ${text}`])).sort(),
    );
    expect(view.history.map(pastOf).sort()).toEqual([...this.past].sort());
    for (const node of NODES) {
      const listed = view.session(node)!.leases.map((each) => formatAddress(each.address));
      expect(listed.sort()).toEqual([...this.leasesOf(node, true), ...this.vanishedOf(node)].sort());
    }
    expectDistinctTimes(view.history);
  }
}
