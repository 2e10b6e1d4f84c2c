import type { ClusterChange, ClusterView } from '@podwire/dataplane/cluster/cluster';
import type { Condition } from '@podwire/dataplane/conditions/conditions';
import { addressesOf } from '@podwire/dataplane/pods/host-links';
import type { NodeAddressHooks, NodeAddressParts } from '@podwire/dataplane/node-addresses';
import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { HeldEndpoint } from '@podwire/dataplane/repair/lost-wires';
import type {
  LeasedAddress,
  Limits,
  NodeAddresses,
  NodeEndpoint,
  PluginAttachments,
  RecordedPod,
  TakenLeases,
} from '@podwire/plugin/clients/clients';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { untilAborted } from '@podwire/shared/failure/signal';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Boot } from '@podwire/shared/runtime/boot';
import type { Clock } from '@podwire/shared/runtime/clock';
import { recordInterval } from '@podwire/shared/telemetry/intervals';

import { bootClock } from './boot-clock.js';
import { EndedAddresses } from './ended-addresses.js';
import { EndpointReporter } from './reports/endpoint-report.js';
import type { AddressEvents, Work } from './events.js';
import { InventoryReporter } from './reports/inventory-report.js';
import type { LeaseApi } from './lease-api.js';
import { bindAddresses } from './lease-calls.js';
import type { LeaseFile } from './lease-file.js';
import { familyOf, type Lease, type LeaseMarks } from './lease.js';
import { LeaseRefill } from './refill.js';
import { IpamSession } from './session.js';
import { Settlement } from './settlement.js';
import { LeaseStock } from './stock.js';

export interface AddressBookOptions extends NodeAddressParts {
  readonly api: LeaseApi;
  readonly file: LeaseFile;
  readonly marks: LeaseMarks;
  readonly nodeName: string;
  readonly machineId: string;
  readonly boot: Boot;
  readonly events: AddressEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Time since the boot, in milliseconds, with the time in which the machine was suspended. Default: the kernel's. */
  readonly bootMs?: () => number;
}

const BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 15_000 };

/** Timeout of a run, in milliseconds. */
const TIMEOUT_MS = 10_000;

/** Time in which a stopping process tries to bind and return remaining addresses, in milliseconds. */
const STOP_TIMEOUT_MS = 1000;

/** Pods with addresses of another IPAM plugin that come and go within this time are reported together, in milliseconds. */
const ENDPOINTS_PAUSE_MS = 1000;

const TIMEOUT = new Failure(
  'DEADLINE_EXCEEDED',
  'the comparison of this node with podwire-ipam takes longer; repeat it',
);

/** Until the plugin has started, which is before the first command. */
const NO_PLUGIN: PluginAttachments = {
  runExclusive: (_, __, work) => work(),
  pendingAddresses: () => [],
  usageOf: () => 'pending',
};

/**
 * podwire-ipam's addresses on this node. The record of an attachment says what becomes of its addresses; one worker, which makes
 * one call at a time, drives it to its end. The leases that no pod has are in the stock.
 */
export class AddressBook implements NodeAddressHooks, NodeAddresses {
  readonly #options: AddressBookOptions;
  readonly #stock: LeaseStock;
  readonly #session: IpamSession;
  readonly #ended: EndedAddresses;
  readonly #settlement: Settlement;
  readonly #refill: LeaseRefill;
  readonly #inventory: InventoryReporter;
  readonly #endpoints: EndpointReporter;
  readonly #queue: WorkQueue<Work>;
  readonly #unobserve: () => void;
  #noteListed: () => void = () => undefined;
  /** Resolves when the node knows its IPv4 leases, or podwire-ipam does not answer. */
  readonly listed = new Promise<void>((resolve) => (this.#noteListed = resolve));
  #plugin = NO_PLUGIN;
  /** Attachments whose interface the kernel has, without a record, by address: the directory of records was emptied. */
  #unrecorded: ReadonlyMap<string, Attachment> = new Map();
  /** Datastore lock as last seen in the cluster's state. */
  #isLocked = false;
  #inventoryRequestCount: bigint | undefined;
  #nodeAddress = '';
  /** Failure of the last attempt to open the session. */
  #openFailure: Failure | undefined;

  private constructor(options: AddressBookOptions) {
    const { registry, api, file, marks, nodeName, machineId, boot, events, clock, random } = options;
    const bootMs = options.bootMs ?? bootClock(clock);
    this.#options = options;
    this.#queue = this.#makeQueue();
    this.#stock = new LeaseStock({ file, occupancy: () => this.#occupancy(), bootMs });
    this.#session = new IpamSession({
      ...{ api, nodeName, machineId, bootId: boot.id },
      nodeAddress: () => this.#nodeAddress,
      last: this.#stock.load(),
      onChange: (session) => this.#stock.noteSession(session),
      onOpened: () => {
        this.#endpoints.forget();
        this.#queue.request('inventory');
        this.#refill.list();
      },
      onRestored: () => {
        this.#stock.dropAll();
        // podwire-ipam may know none of the addresses, also of pods that end before they are bound again.
        this.#ended.markSent(registry.all());
      },
      onDisplaced: (failure) => {
        this.#ended.clear();
        this.#stock.clear();
        events.displaced(failure);
      },
    });
    const parts = { registry, stock: this.#stock, session: this.#session, events, clock, random, bootMs };
    this.#ended = new EndedAddresses({ ...parts, isOccupied: (address) => this.#unrecordedTest()(address) });
    this.#settlement = new Settlement({
      ...parts,
      ended: this.#ended,
      request: (ms) => this.#queue.request('settle', ms),
      runNow: () => this.#queue.runNow('settle'),
    });
    this.#refill = new LeaseRefill({
      ...parts,
      marks,
      unboundCount: (family) => this.#unboundCount(family),
      settlement: this.#settlement,
      onListing: (leases, signal) => this.#bindUnrecorded(leases, signal),
      request: (family, ms) => this.#request(family, ms),
    });
    this.#inventory = new InventoryReporter({
      ...parts,
      links: options.links,
      boot,
      plugin: () => this.#plugin,
      onUnbound: (record) => this.#settlement.requestNow(record),
      onLeasesDiffer: () => this.#refill.list(),
    });
    this.#endpoints = new EndpointReporter(parts);
    this.#unobserve = events.observe({
      leaseCount: (family) => this.#stock.count(family),
      unsettled: () => this.#settlement.unsettled(),
    });
  }

  /** Loads what the previous process left. */
  static async open(options: AddressBookOptions): Promise<AddressBook> {
    const book = new AddressBook(options);
    await book.#readUnrecorded();
    book.#stock.dropOccupied();
    if (book.#stock.count(4) > 0) book.#noteListed();
    return book;
  }

  start(plugin: PluginAttachments): void {
    this.#plugin = plugin;
    this.#settlement.start();
    this.#refill.list();
    this.#queue.request('inventory');
  }

  get refusal(): Failure | undefined {
    return this.#session.refusal;
  }

  async claim(address: string, signal: AbortSignal): Promise<boolean> {
    if (address !== this.#nodeAddress) this.#session.renew();
    this.#nodeAddress = address;
    const isFirst = !this.#session.wasOpened;
    const isOwner = await this.#openSession(signal);
    // podwire-ipam leases nothing to a node that is not registered.
    if (isOwner && isFirst) this.#refill.listNow();
    return isOwner;
  }

  async requireName(signal: AbortSignal): Promise<void> {
    if (this.refusal) throw this.refusal;
    const open = (): Promise<boolean> => this.#openSession(signal);
    if (!this.#session.wasOpened) await recordInterval('podwire-ipam OpenSession', 'rpc', open);
  }

  /** @returns false if the node is not registered @throws Failure of OpenSession, or the signal's reason */
  async #openSession(signal: AbortSignal): Promise<boolean> {
    await untilAborted(this.#queue.runNow('session'), signal);
    const failure = this.#openFailure;
    if (failure?.code === 'NODE_NOT_FOUND') return false;
    if (failure) throw failure;
    return true;
  }

  async take(attachment: Attachment, families: readonly Family[], signal: AbortSignal): Promise<TakenLeases> {
    if (this.#options.marks.highCount === 0) return { reason: 'off' };
    // podwire-ipam refuses Allocate under the lock, and knows first when the lock has ended.
    if (this.#isLocked) return { reason: 'locked' };
    if (this.refusal) return { reason: 'unavailable' };
    // Its earlier addresses may be bound in podwire-ipam.
    if (this.#isKnown(attachment)) return { reason: 'known' };
    const leases = await this.#refill.take(families, signal);
    if (typeof leases !== 'string') return { leases };
    const reused = this.#session.isUnreachable ? await this.#takeReused(families) : undefined;
    return reused ? { leases: reused } : { reason: leases };
  }

  giveBack(leases: readonly LeasedAddress[]): void {
    const { registry } = this.#options;
    this.#stock.giveBack(leases, ({ address }) => registry.withAddress(address).every(({ state }) => state !== 'dead'));
  }

  hasLeases(families: readonly Family[]): boolean {
    const canGive = this.#options.marks.highCount > 0 && !this.#isLocked && !this.refusal;
    const canReuse = (family: Family) => this.#session.isUnreachable && this.#ended.has(family);
    return canGive && families.every((family) => this.#stock.count(family) > 0 || canReuse(family));
  }

  recorded(attachment: Attachment): RecordedPod | undefined {
    const record = this.#options.registry.get(attachment);
    return record && recordedPod(record);
  }

  isHeldByOtherPod(attachment: Attachment, address: string): boolean {
    const key = formatAttachment(attachment);
    const { registry } = this.#options;
    return registry
      .withAddress(address)
      .some(({ network, state }) => state !== 'dead' && formatAttachment(network.attachment) !== key);
  }

  returned(attachment: Attachment, addresses: readonly string[], signal: AbortSignal): Promise<void> {
    return this.#settlement.returned(attachment, addresses, signal);
  }

  async unknownAllocations(network: string, { deadlineMs, signal }: Limits): Promise<readonly NodeEndpoint[]> {
    const { clock } = this.#options;
    const ended = new AbortController();
    const timeout = clock.sleep(deadlineMs - clock.nowMs(), AbortSignal.any([signal, ended.signal])).then(() => {
      throw TIMEOUT;
    });
    try {
      await Promise.race([this.#queue.runNow('inventory'), timeout]);
    } finally {
      ended.abort();
      signal.throwIfAborted();
    }
    return this.#inventory.kept(network);
  }

  settle(record: AttachmentRecord): void {
    if (record.allocation) this.#settlement.request(record);
    else if (this.#session.wasOpened) this.#queue.request('endpoints', ENDPOINTS_PAUSE_MS);
  }

  endpoint(attachment: Attachment, signal: AbortSignal): Promise<HeldEndpoint | undefined> {
    return this.#options.api.endpoint(attachment, signal);
  }

  follow(view: ClusterView, change: ClusterChange): void {
    this.#isLocked = view.isDatastoreLocked;
    this.#refill.follow(view, change);
    const node = view.cluster.nodes.get(view.self);
    if (!node) return;
    const count = node.inventoryRequestCount ?? 0n;
    const isRequested = this.#inventoryRequestCount !== undefined && count !== this.#inventoryRequestCount;
    // A new snapshot may come from a restored datastore, which the node's session reveals.
    if (isRequested || change.blocks === 'all') this.#queue.hurry('inventory');
    this.#inventoryRequestCount = count;
  }

  /** Counts for the node's status. */
  counts() {
    const { unboundCount, unreturnedCount } = this.#settlement.unsettled();
    const leaseCount = FAMILIES.reduce((sum, family) => sum + this.#stock.count(family), 0);
    return { leaseCount, unboundCount, unreturnedCount };
  }

  conditions(): readonly Condition[] {
    const refused = [...this.#settlement.unrecorded()].map(([attachment, reason]) => ({
      reason: 'AddressNotBound',
      message: `podwire-ipam does not record the address of ${attachment}: ${reason}; delete the pod`,
    }));
    return [...this.#session.conditions(), ...refused];
  }

  /** Settles the rest. The leases stay on the node, for the next process. */
  async stop(): Promise<void> {
    this.#unobserve();
    await this.#settlement.finish(STOP_TIMEOUT_MS);
    await this.#queue.stop();
    this.#refill.end();
  }

  #makeQueue(): WorkQueue<Work> {
    const { clock, random, events } = this.#options;
    return new WorkQueue<Work>({
      reconcile: (work, signal) => this.#run(work, signal),
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error, retryInMs, work) => {
        if (!(error instanceof Failure)) throw error;
        if (work === 4 || work === 6) this.#refill.failed(work);
        // Its registration is on its way.
        if (error.code !== 'NODE_NOT_FOUND') this.#noteListed();
        events.failed(work, error, retryInMs);
      },
      clock,
      timeoutMs: TIMEOUT_MS,
      // podwire-ipam orders the calls of a node by their sending: none is sent before the answer to the last.
      concurrency: 1,
    });
  }

  #run(work: Work, signal: AbortSignal): Promise<NextRun | undefined> {
    switch (work) {
      case 'session':
        return this.#runSession(signal);
      case 'settle':
        return this.#settlement.run(signal);
      case 'inventory':
        return this.#runInventory(signal);
      case 'endpoints':
        return this.#endpoints.run(signal);
      case 4:
      case 6:
        return this.#runRefill(work, signal);
    }
  }

  /** Keeps the failure for the callers, which decide on a retry: the queue retries none. */
  async #runSession(signal: AbortSignal): Promise<undefined> {
    try {
      await this.#session.open(signal);
      this.#openFailure = undefined;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.#openFailure = error;
    }
  }

  async #runRefill(family: Family, signal: AbortSignal): Promise<NextRun | undefined> {
    const next = await this.#refill.run(family, signal);
    if (family === 4) this.#noteListed();
    return next;
  }

  async #runInventory(signal: AbortSignal): Promise<NextRun> {
    const next = await this.#inventory.run(signal);
    // Also of pods whose namespace is gone, and after the session was opened.
    this.#queue.request('endpoints');
    return next;
  }

  #request(work: Work, afterMs: number | undefined): void {
    if (afterMs === undefined) this.#queue.hurry(work);
    else this.#queue.request(work, afterMs);
  }

  /** Takes addresses of deleted pods, which podwire-ipam has not got back. */
  async #takeReused(families: readonly Family[]): Promise<readonly Lease[] | undefined> {
    const taken: Lease[] = [];
    for (const family of families) {
      const lease = this.#stock.take([family])?.[0] ?? (await this.#ended.take(family));
      if (!lease) {
        this.giveBack(taken);
        return undefined;
      }
      this.#options.events.reused(lease.address);
      taken.push(lease);
    }
    return taken;
  }

  /** Addresses that podwire-ipam may still have as leases, though an ADD or a pod has them. */
  #unboundCount(family: Family): number {
    const unbound = this.#options.registry.all().flatMap(({ allocation }) => {
      const addresses = allocation && !allocation.isBound ? allocation.addresses : [];
      return addresses.filter((each) => familyOf({ address: each.address }) === family);
    });
    return unbound.filter(({ address }) => !this.#stock.isTaken(address)).length + this.#stock.takenCount(family);
  }

  /** Tests whether anything of this node has an address. For one operation, as it reads the plugin's journal only once. */
  #occupancy(): (address: string) => boolean {
    const { registry } = this.#options;
    const isUnrecorded = this.#unrecordedTest();
    return (address) => registry.withAddress(address).length > 0 || isUnrecorded(address);
  }

  /** Tests whether something without a record has an address. For one operation. */
  #unrecordedTest(): (address: string) => boolean {
    const pending = new Set(this.#plugin.pendingAddresses());
    return (address) => this.#unrecorded.has(address) || pending.has(address);
  }

  #isKnown(attachment: Attachment): boolean {
    if (this.#options.registry.get(attachment)) return true;
    const key = formatAttachment(attachment);
    return [...this.#unrecorded.values()].some((unrecorded) => formatAttachment(unrecorded) === key);
  }

  async #readUnrecorded(): Promise<void> {
    const { registry, links } = this.#options;
    const unrecorded = (await links()).filter(({ attachment }) => !registry.get(attachment));
    this.#unrecorded = new Map(
      unrecorded.flatMap((link) => addressesOf(link).map((address) => [address, link.attachment] as const)),
    );
  }

  /** Binds leases that pods without a record have, each in its attachment's turn: a DEL must not be followed by its binding. */
  async #bindUnrecorded(leases: readonly Lease[], signal: AbortSignal): Promise<void> {
    if (this.#unrecorded.size === 0) return;
    await this.#readUnrecorded();
    for (const attachment of new Set(this.#unrecorded.values())) {
      const isOwn = ({ address }: Lease) => this.#unrecorded.get(address) === attachment;
      const addresses = leases.filter(isOwn).map(({ address, sequenceNumber }) => ({ address, sequenceNumber }));
      if (addresses.length === 0) continue;
      await this.#plugin.runExclusive(attachment, STOP_TIMEOUT_MS, async () => {
        await this.#readUnrecorded();
        const isWired = addresses.every(({ address }) => this.#unrecorded.has(address));
        const attachTime = new Date(this.#options.clock.nowMs());
        if (isWired) await bindAddresses(this.#session, [{ attachment, addresses, attachTime }], signal);
      });
    }
  }
}

/** The record of an attachment as CNI commands see it. */
export function recordedPod({ allocation, identity, state }: AttachmentRecord): RecordedPod {
  return {
    allocation,
    netnsInode: identity.inode,
    isDetaching: state === 'detaching',
    isDead: state === 'dead',
  };
}
