import type {
  InventoryFinding,
  ReportInventoryResponse,
  UnknownAllocation,
} from '@podwire/proto/podwire/ipam/v1/lease';
import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { addressesOf } from '@podwire/dataplane/pods/host-links';
import type { AttachedLink } from '@podwire/dataplane/pods/kernel';
import type { NodeEndpoint, PluginAttachments } from '@podwire/plugin/clients/clients';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import type { NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Boot } from '@podwire/shared/runtime/boot';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AddressEvents } from '../events.js';
import { inventoryOf, isGarbage, type Inventory, type KeptAllocation } from './inventory.js';
import { returnAddresses } from '../lease-calls.js';
import { familyOf } from '../lease.js';
import type { IpamSession } from '../session.js';
import type { LeaseStock } from '../stock.js';

/** Mean time between two reports: podwire-ipam takes a node for dead that says nothing for 4 minutes. In milliseconds. */
const INTERVAL_MS = 90_000;

/** Time until the next report after one that found addresses to bind: podwire-ipam waits for it after a restore. In milliseconds. */
const REPAIR_INTERVAL_MS = 500;

/** Time until the next report while another holder has an address: after a restore that may be an ended pod. In milliseconds. */
const CONFLICT_INTERVAL_MS = 10_000;

/** Largest relative deviation of an interval from its mean, so that nodes that start together drift apart. */
const JITTER = 0.2;

/** How long a run waits for the commands of one attachment, in milliseconds. An ADD among them may wait for this worker. */
const TURN_TIMEOUT_MS = 1000;

interface InventoryReporterOptions {
  readonly registry: Pick<AttachmentRegistry, 'all' | 'get' | 'setUnbound'>;
  readonly stock: Pick<LeaseStock, 'unbound' | 'isTaken' | 'isInUse' | 'drop'>;
  readonly session: IpamSession;
  readonly plugin: () => PluginAttachments;
  readonly links: () => Promise<readonly AttachedLink[]>;
  readonly boot: Boot;
  readonly events: AddressEvents;
  readonly clock: Pick<Clock, 'nowMs'>;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** The record's address is not in the datastore: it has to be bound again. */
  readonly onUnbound: (record: AttachmentRecord) => void;
  /** Leases differ. */
  readonly onLeasesDiffer: () => void;
}

/** An allocation without a record. */
type UnknownAttachment = UnknownAllocation & {
  readonly attachment: Attachment;
  readonly allocation: NonNullable<UnknownAllocation['allocation']>;
};

/** Compares what the node holds with the datastore, and repairs the differences. */
export class InventoryReporter {
  readonly #options: InventoryReporterOptions;
  /** Allocations without a record that may belong to a pod. */
  #kept: readonly UnknownAttachment[] = [];

  constructor(options: InventoryReporterOptions) {
    this.#options = options;
  }

  /** Allocations of a network without a record that the last run kept, because they may belong to a pod. */
  kept(network: string): readonly NodeEndpoint[] {
    return this.#kept
      .filter(({ attachment }) => attachment.network === network)
      .map(({ attachment, allocation, netns, allocateTime }) => {
        return { attachment, held: [allocation], bootId: netns?.bootId, createdAtMs: allocateTime?.getTime() };
      });
  }

  async run(signal: AbortSignal): Promise<NextRun> {
    this.#kept = await this.#returnGarbage(this.#kept, signal);
    const { equal } = await this.#report(false, signal);
    const soonMs = equal ? undefined : await this.#compare(signal);
    return { inMs: soonMs ?? INTERVAL_MS * (1 + JITTER * (2 * this.#options.random() - 1)) };
  }

  /** @returns time until the next report, in milliseconds; undefined: the usual one */
  async #compare(signal: AbortSignal): Promise<number | undefined> {
    const { stock, onLeasesDiffer } = this.#options;
    const { equal, findings, unknown } = await this.#report(true, signal);
    if (equal) return undefined;
    let isBoundAgain = false;
    for (const finding of findings) isBoundAgain = (await this.#bindAgain(finding)) || isBoundAgain;
    const isLease = ({ attachment }: InventoryFinding | UnknownAllocation) => attachment === undefined;
    const hasDropped = stock.drop(findings.filter(isLease).flatMap(({ allocation }) => allocation ?? []));
    if (findings.some(isLease) || unknown.some(isLease)) onLeasesDiffer();
    const allocations = unknown.flatMap(ofAttachment);
    this.#kept = await this.#returnGarbage(allocations, signal);
    const hasReturned = this.#kept.length < allocations.length;
    if (hasDropped || isBoundAgain) return REPAIR_INTERVAL_MS;
    // The settlement of the other pods is under way, or another holder has their addresses.
    return hasReturned || !findings.every(isLease) ? CONFLICT_INTERVAL_MS : undefined;
  }

  /** Reports what the node holds when the call is sent: pods come and go while the session is opened. */
  #report(whole: boolean, signal: AbortSignal) {
    const { session } = this.#options;
    const { nodeName } = session;
    return session.call<ReportInventoryResponse>((api, own) => {
      const { digest, ...rest } = this.#inventory();
      const holdings = whole ? rest : { attachments: [], leases: [] };
      return api.reportInventory({ nodeName, session: own, digest, whole, ...holdings }, signal);
    }, signal);
  }

  #inventory(): Inventory {
    const { registry, stock, session } = this.#options;
    // The address of an ADD in progress is a lease, and one with another node's name is that node's.
    const records = registry.all().filter(({ allocation }) => {
      const isOwn = allocation?.nodeName === session.nodeName;
      return isOwn && !allocation.addresses.some(({ address }) => stock.isTaken(address));
    });
    const kept = this.#kept.map(({ attachment, allocation }): KeptAllocation => ({ attachment, ...allocation }));
    return inventoryOf({ records, leases: stock.unbound(), kept });
  }

  /**
   * Binds an address again unless the attachment has changed since. podwire-ipam refuses it if another holder has it.
   * @returns whether it is bound again
   */
  async #bindAgain({ attachment, allocation }: InventoryFinding): Promise<boolean> {
    const { registry, onUnbound } = this.#options;
    const record = attachment && registry.get(attachment);
    const isCurrent = record?.allocation?.addresses.some(
      ({ address, sequenceNumber }) => address === allocation?.address && sequenceNumber === allocation.sequenceNumber,
    );
    if (!record || !isCurrent || !record.allocation?.isBound) return false;
    const unbound = await registry.setUnbound(record);
    if (unbound) onUnbound(unbound);
    return unbound !== undefined;
  }

  /** Returns garbage. @returns the rest */
  async #returnGarbage(
    unknown: readonly UnknownAttachment[],
    signal: AbortSignal,
  ): Promise<readonly UnknownAttachment[]> {
    const kept: UnknownAttachment[] = [];
    for (const each of unknown) {
      if (this.#isRecorded(each)) continue;
      if (!(await this.#returnIfGarbage(each, signal))) kept.push(each);
    }
    return kept;
  }

  /** Decides in the attachment's turn, so that no ADD is in progress. @returns whether it is returned */
  async #returnIfGarbage(unknown: UnknownAttachment, signal: AbortSignal): Promise<boolean> {
    const { registry, stock, plugin, session, boot, events, clock, onLeasesDiffer } = this.#options;
    const { attachment, allocation, netns } = unknown;
    const isCandidate = (): boolean => {
      const record = registry.get(attachment);
      if (!record) return isGarbage(unknown, plugin().usageOf(attachment), boot);
      // A record has all addresses of its attachment. One without an allocation is of a caller that allocated them itself.
      return (
        record.allocation !== undefined || !record.network.addresses.map(formatAddress).includes(allocation.address)
      );
    };
    if (!isCandidate()) return false;
    const isReturned = async (): Promise<boolean> => {
      if (this.#isRecorded(unknown) || !isCandidate()) return false;
      const links = await this.#options.links();
      if (!registry.get(attachment) && links.some((link) => mayHave(link, unknown))) return false;
      // Another pod of this node has the address: it must not go to other nodes before it is bound.
      const isWired = links.some((link) => addressesOf(link).includes(allocation.address));
      const keepAsLease = isWired || stock.isInUse(allocation.address);
      // The pod has ended at an unknown time.
      const rest = { attachTime: undefined, detachTime: new Date(clock.nowMs()), keepAsLease };
      const results = await returnAddresses(session, [{ allocation, attachment, netns, ...rest }], signal);
      const isFreed = results.some(({ isReturned }) => isReturned);
      if (isFreed) events.leftoverReturned(attachment, allocation.address);
      if (isFreed && keepAsLease) onLeasesDiffer();
      return isFreed;
    };
    try {
      return await plugin().runExclusive(attachment, TURN_TIMEOUT_MS, isReturned);
    } catch (error) {
      // Its commands take long: the next run looks again.
      if (error instanceof Failure && error.code === 'DEADLINE_EXCEEDED' && !session.isUnreachable) return false;
      throw error;
    }
  }

  #isRecorded({ attachment, allocation }: UnknownAttachment): boolean {
    const { allocation: recorded } = this.#options.registry.get(attachment) ?? {};
    return recorded?.addresses.some(({ address }) => address === allocation.address) === true;
  }
}

/** Whether it is the wire of the attachment, and may have the allocation's address: a pod has one of each family. */
function mayHave(link: AttachedLink, { attachment, allocation: { address } }: UnknownAttachment): boolean {
  const addresses = addressesOf(link).filter((each) => familyOf({ address: each }) === familyOf({ address }));
  return (
    formatAttachment(link.attachment) === formatAttachment(attachment) &&
    (addresses.length === 0 || addresses.includes(address))
  );
}

function ofAttachment(unknown: UnknownAllocation): UnknownAttachment[] {
  const { attachment, allocation } = unknown;
  return attachment && allocation ? [{ ...unknown, attachment, allocation }] : [];
}
