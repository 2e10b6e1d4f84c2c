import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { splitCidr } from '@podwire/shared/net/prefix';
import { formatAddress, type Family } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, ClusterView, Follower } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import type { AttachedLink } from '../pods/kernel.js';
import type { AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import type { LeaseEvents } from './lease-events.js';
import { LeaseKeeper, type LeaseMarks, type TakenLeases } from './lease-keeper.js';
import { LeaseStock, type LeaseFile } from './lease-stock.js';
import type { Lease, LeaseBook, LeaseListing } from './lease.js';
import { Settlement } from './settlement.js';

interface LeasesOptions {
  readonly registry: AttachmentRegistry;
  readonly book: LeaseBook;
  readonly file: LeaseFile;
  readonly marks: LeaseMarks;
  readonly events: LeaseEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

/** How long a stopping process tries to bind and return what is left, in milliseconds. */
const STOP_TIMEOUT_MS = 1000;

/**
 * The node's addresses before and after podwire-ipam knows their pods: leases that pods get, and the settlement of the attachments'
 * records with podwire-ipam.
 */
export class Leases implements Follower {
  readonly #options: LeasesOptions;
  readonly #stock: LeaseStock;
  readonly #keeper: LeaseKeeper;
  readonly #settlement: Settlement;
  readonly #unobserve: () => void;
  /** Attachments whose interface the kernel has, without a record, by address: someone emptied the directory of records. */
  readonly #unrecorded = new Map<string, Attachment>();
  #adopting: Promise<void> = Promise.resolve();

  constructor(options: LeasesOptions) {
    this.#options = options;
    const { file, events } = options;
    this.#stock = new LeaseStock(file);
    this.#settlement = new Settlement({ stock: this.#stock, ...options });
    this.#keeper = new LeaseKeeper({
      stock: this.#stock,
      occupied: () => new Set(this.#unrecorded.keys()),
      onListing: (listing, signal) => (this.#adopting = this.#adopt(listing, signal)),
      ...options,
    });
    this.#unobserve = events.observe(this.#stock, () => this.#settlement.unsettled());
  }

  /**
   * Loads the leases that the previous process left. Call once, before the first ADD, with the records loaded.
   * @param links - the attachments that the kernel holds
   */
  load(links: readonly AttachedLink[]): void {
    const records = this.#options.registry.all();
    const recorded = new Set(records.map(({ network }) => formatAttachment(network.attachment)));
    for (const { attachment, addresses } of links) {
      if (recorded.has(formatAttachment(attachment))) continue;
      for (const cidr of addresses) {
        const parts = splitCidr(cidr);
        if (parts) this.#unrecorded.set(formatAddress(parts.address), attachment);
      }
    }
    const taken = records.flatMap(({ allocation }) => (allocation && !allocation.isBound ? allocation.addresses : []));
    this.#stock.load(taken, new Set(this.#unrecorded.keys()));
  }

  /** Starts the work in the background. Call once. */
  start(): void {
    this.#settlement.start();
    this.#keeper.start();
  }

  /** Takes one lease of each family for a new attachment. Waits shortly for leases that are on their way. */
  take(attachment: Attachment, families: readonly Family[], signal: AbortSignal): Promise<TakenLeases> {
    // Its earlier addresses may be bound in podwire-ipam.
    if (this.#isKnown(attachment)) return Promise.resolve({ reason: 'known' });
    return this.#keeper.take(families, signal);
  }

  giveBack(leases: readonly Lease[]): void {
    this.#keeper.giveBack(leases);
  }

  hasLeases(families: readonly Family[]): boolean {
    return this.#keeper.hasLeases(families);
  }

  /** The addresses of the record have to be bound or returned. Returns at once. */
  settle(record: AttachmentRecord): void {
    if (record.state === 'dead') this.#stock.unwired(record.allocation?.addresses ?? []);
    this.#settlement.request(record);
  }

  /** Waits until the addresses of an attachment without a wire are returned. @throws Failure the signal's */
  returned(attachment: Attachment, signal: AbortSignal): Promise<void> {
    return this.#settlement.returned(attachment, signal);
  }

  /** An attachment without a record is about to be released: its addresses are not bound any more after this. Never rejects. */
  async forget(attachment: Attachment): Promise<void> {
    const key = formatAttachment(attachment);
    for (const [address, unrecorded] of this.#unrecorded)
      if (formatAttachment(unrecorded) === key) this.#unrecorded.delete(address);
    await this.#adopting.catch(() => undefined);
  }

  follow(view: ClusterView, change: ClusterChange): void {
    this.#keeper.follow(view, change);
  }

  /** For the node's status. */
  counts() {
    const { unboundCount, unreturnedCount } = this.#settlement.unsettled();
    const leaseCount = this.#stock.count(4) + this.#stock.count(6);
    return { leaseCount, unboundCount, unreturnedCount };
  }

  conditions(): readonly Condition[] {
    return [...this.#settlement.unsettled().refused].map(([attachment, reason]) => ({
      reason: 'AddressNotBound',
      message: `podwire-ipam does not record the address of ${attachment}: ${reason}; delete the pod`,
    }));
  }

  async stop(): Promise<void> {
    this.#unobserve();
    await this.#keeper.stop();
    await this.#settlement.stop(STOP_TIMEOUT_MS);
  }

  #isKnown(attachment: Attachment): boolean {
    if (this.#options.registry.get(attachment)) return true;
    const key = formatAttachment(attachment);
    return [...this.#unrecorded.values()].some((unrecorded) => formatAttachment(unrecorded) === key);
  }

  /** Binds leases that pods without a record have. */
  async #adopt({ leases }: LeaseListing, signal: AbortSignal): Promise<void> {
    for (const attachment of new Set(this.#unrecorded.values())) {
      const own = leases.filter(({ address }) => this.#unrecorded.get(address) === attachment);
      if (own.length > 0) await this.#options.book.adopt({ attachment, addresses: own }, signal);
    }
  }
}
