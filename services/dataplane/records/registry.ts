import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import type { RecordStore, UnreadableRecord } from './record-store.js';
import {
  compareIdentities,
  encodeRecord,
  type AttachmentRecord,
  type RecordState,
  type NamespaceIdentity,
} from './record.js';
import type { AllocatedAddress, RecordedAllocation } from '@podwire/shared/attachment/allocation';

interface RegistryOptions {
  readonly store: RecordStore;
  /** ID of this boot. */
  readonly bootId: string;
  readonly clock: Clock;
  /** Called when the store refuses a change; {@link AttachmentRegistry.flush} retries it. */
  readonly onStoreFailure: (attachment: Attachment, failure: unknown) => void;
}

/** An address that another attachment has. */
export interface LostAddress {
  readonly address: Address;
  /** Formatted. */
  readonly holder: string;
}

/** An address of several attachments, each formatted. */
export interface SharedAddress {
  readonly address: string;
  /** The latest to be attached with it. */
  readonly holder: string;
  readonly earlierHolders: readonly string[];
}

export interface LoadResult {
  readonly unreadable: readonly UnreadableRecord[];
  /** Records of an earlier boot, dropped because their namespaces are gone. */
  readonly fromEarlierBoots: readonly AttachmentRecord[];
}

/**
 * The node's attachment records: in memory, and in a store for the next process.
 *
 * A failing store does not keep a pod from its network: the change is kept in memory and stored later. A process that ends before
 * that leaves links without records, which the next one adopts. Changes of one attachment are serialized by its lock.
 */
export class AttachmentRegistry {
  readonly #options: RegistryOptions;
  readonly #records = new Map<string, AttachmentRecord>();
  /** Attached ones by host interface name: the latest to be wired. */
  readonly #ofHostInterfaces = new Holders();
  /** Attached ones by address: the latest to be attached with it. */
  readonly #ofAddresses = new Holders();
  /** Attachments by address, in any state. */
  readonly #withAddresses = new Map<string, ReadonlySet<string>>();
  /** Whether this process has seen or created an attachment's source routing rules in the pod. Absent: not checked yet. */
  readonly #hasRules = new Map<string, boolean>();
  /** Attachments whose stored record is outdated. */
  readonly #unstored = new Map<string, Attachment>();

  constructor(options: RegistryOptions) {
    this.#options = options;
  }

  /** Loads the records of the previous process. Call once, before anything else. @throws Failure STATE_IO */
  async load(): Promise<LoadResult> {
    const { records, unreadable } = await this.#options.store.load();
    const isOfThisBoot = (record: AttachmentRecord): boolean => record.bootId === this.#options.bootId;
    for (const record of records.filter(isOfThisBoot)) this.#remember(record);
    const outlived = records.filter((record) => !isOfThisBoot(record));
    for (const { network } of outlived) await this.remove(network.attachment);
    return { unreadable, fromEarlierBoots: outlived };
  }

  get(attachment: Attachment): AttachmentRecord | undefined {
    return this.#records.get(formatAttachment(attachment));
  }

  /** The attachment that was wired last with a host interface of this name; the wires of earlier ones are gone. */
  byHostInterface(name: string): AttachmentRecord | undefined {
    const key = this.#ofHostInterfaces.holder(name);
    return key === undefined ? undefined : this.#records.get(key);
  }

  /** Addresses of a pod that another attachment has received since, or has while this one is not recorded with them. */
  lostAddresses({ attachment, addresses }: Pick<PodNetwork, 'attachment' | 'addresses'>): LostAddress[] {
    const own = formatAttachment(attachment);
    return addresses.flatMap((address): LostAddress[] => {
      const holder = this.#ofAddresses.holder(formatAddress(address));
      return holder === undefined || holder === own ? [] : [{ address, holder }];
    });
  }

  /** Addresses that several attachments have. */
  sharedAddresses(): SharedAddress[] {
    return [...this.#ofAddresses.shared()].map(([address, keys]) => ({
      address,
      holder: keys.at(-1) ?? '',
      earlierHolders: keys.slice(0, -1),
    }));
  }

  /** The records with an address, in any state. */
  withAddress(address: string): AttachmentRecord[] {
    return [...(this.#withAddresses.get(address) ?? [])].flatMap((key) => this.#records.get(key) ?? []);
  }

  all(): AttachmentRecord[] {
    return [...this.#records.values()];
  }

  /** Whether another attachment has an interface in the same namespace, or may have, where the kernel reports no cookie. */
  hasOtherInterface(attachment: Attachment, identity: NamespaceIdentity): boolean {
    const key = formatAttachment(attachment);
    // Runs on every ADD, so it copies no list.
    for (const [other, record] of this.#records) {
      if (record.state === 'attached' && compareIdentities(record.identity, identity) !== 'other' && other !== key)
        return true;
    }
    return false;
  }

  /** Notes, for this process, whether an attachment's rules were seen in its pod. Rules once seen may reappear. */
  noteRules(attachment: Attachment, isSeen: boolean): void {
    const key = formatAttachment(attachment);
    this.#hasRules.set(key, isSeen || this.#hasRules.get(key) === true);
  }

  /** Whether a pod may have rules of an attachment: they were seen, or not checked since the start. */
  mayHaveRules(attachment: Attachment): boolean {
    return this.#hasRules.get(formatAttachment(attachment)) ?? true;
  }

  /**
   * Records a pod as wired in a namespace; it becomes the holder of its addresses, replacing earlier ones. Stores nothing when
   * nothing changes. Never rejects.
   * @param allocation - undefined keeps the one of an earlier wiring with the same addresses
   */
  async record(network: PodNetwork, identity: NamespaceIdentity, allocation?: RecordedAllocation): Promise<void> {
    const before = this.get(network.attachment);
    const nowMs = this.#options.clock.nowMs();
    const isSameWire = before !== undefined && compareIdentities(before.identity, identity) !== 'other';
    const createdAtMs = isSameWire ? before.createdAtMs : nowMs;
    const { bootId } = this.#options;
    const lost = this.lostAddresses(network);
    const known = allocation ?? (before && hasSameAddresses(before.network, network) ? before.allocation : undefined);
    const record: AttachmentRecord = {
      network,
      ...(known && { allocation: known }),
      identity,
      bootId,
      state: 'attached',
      createdAtMs,
      // Later than earlier holders of the addresses, even if the clock was set back.
      updatedAtMs: Math.max(nowMs, ...lost.map(({ address }) => this.#givenAtMs(address) + 1)),
    };
    if (before && isEqual(before, record) && lost.length === 0) return;
    await this.#put(record);
  }

  /** @returns the updated record; undefined when the attachment has none. Never rejects. */
  async setState(attachment: Attachment, state: RecordState): Promise<AttachmentRecord | undefined> {
    const before = this.get(attachment);
    if (!before || before.state === state) return before;
    const record: AttachmentRecord = { ...before, state, updatedAtMs: this.#options.clock.nowMs() };
    await this.#put(record);
    return record;
  }

  /**
   * Ends the record of an attachment without a wire: removes it, or keeps it until podwire-ipam has its addresses back.
   * @returns the dead record; undefined if there is none. Never rejects.
   */
  async end(attachment: Attachment): Promise<AttachmentRecord | undefined> {
    if (this.get(attachment)?.allocation) return this.setState(attachment, 'dead');
    await this.remove(attachment);
    return undefined;
  }

  /**
   * Notes that podwire-ipam has recorded the allocation of a record, unless the record was replaced since. Never rejects.
   * @param allocated - the addresses as podwire-ipam has them now; all other addresses of the record stay as they are
   */
  async setBound(record: AttachmentRecord, allocated: readonly AllocatedAddress[]): Promise<void> {
    const { allocation } = record;
    const current = this.get(record.network.attachment);
    if (!allocation || current?.allocation !== allocation) return;
    const addresses = allocation.addresses.map(
      (each) => allocated.find(({ address }) => address === each.address) ?? each,
    );
    await this.#put({ ...current, allocation: { ...allocation, addresses, isBound: true } });
  }

  /** Notes that podwire-ipam lacks the allocation of an attached record. @returns the updated record. Never rejects. */
  async setUnbound(record: AttachmentRecord): Promise<AttachmentRecord | undefined> {
    const { allocation, network } = record;
    if (!allocation || this.get(network.attachment) !== record || record.state !== 'attached') return undefined;
    const unbound = { ...record, allocation: { ...allocation, isBound: false } };
    await this.#put(unbound);
    return unbound;
  }

  /**
   * Notes that an ended record's address continues as another allocation, in other records that name the former one.
   * Never rejects.
   */
  async renumber(ended: AttachmentRecord, { address, sequenceNumber }: AllocatedAddress, next: bigint): Promise<void> {
    const isNamed = (each: AllocatedAddress) => each.address === address && each.sequenceNumber === sequenceNumber;
    for (const record of this.withAddress(address)) {
      const { allocation, network } = record;
      const isEnded = formatAttachment(network.attachment) === formatAttachment(ended.network.attachment);
      if (isEnded || !allocation?.addresses.some(isNamed)) continue;
      const addresses = allocation.addresses.map((each) => (isNamed(each) ? { address, sequenceNumber: next } : each));
      await this.#put({ ...record, allocation: { ...allocation, addresses } });
    }
  }

  /**
   * Notes that another pod is about to get an address of a dead record. Never rejects.
   * @returns whether that is stored: after a crash nothing else may prove it
   */
  async markReused(record: AttachmentRecord): Promise<boolean> {
    const { attachment } = record.network;
    if (this.get(attachment) !== record) return false;
    if (!record.isReused) await this.#put({ ...record, isReused: true });
    return !this.#unstored.has(formatAttachment(attachment));
  }

  /** Restores an earlier record of an attachment, or removes it. Never rejects. */
  async restore(attachment: Attachment, before: AttachmentRecord | undefined): Promise<void> {
    if (this.get(attachment) === before) return;
    await (before ? this.#put(before) : this.remove(attachment));
  }

  /** Never rejects. */
  async remove(attachment: Attachment): Promise<void> {
    const key = formatAttachment(attachment);
    this.#forget(key);
    this.#hasRules.delete(key);
    await this.#store(attachment);
  }

  /** Stores changes that the store refused before, and records that were deleted from it. Never rejects. */
  async flush(): Promise<void> {
    for (const attachment of [...this.#unstored.values()]) await this.#store(attachment);
    for (const [key, { network }] of [...this.#records]) {
      if (this.#unstored.has(key) || (await this.#options.store.has(network.attachment))) continue;
      await this.#store(network.attachment);
    }
  }

  async #put(record: AttachmentRecord): Promise<void> {
    this.#remember(record);
    await this.#store(record.network.attachment);
  }

  async #store(attachment: Attachment): Promise<void> {
    const key = formatAttachment(attachment);
    let record: AttachmentRecord | undefined;
    try {
      do {
        record = this.#records.get(key);
        await (record ? this.#options.store.put(record) : this.#options.store.remove(attachment));
        // A superseded record must not be stored last.
      } while (this.#records.get(key) !== record);
      this.#unstored.delete(key);
    } catch (failure) {
      this.#unstored.set(key, attachment);
      this.#options.onStoreFailure(attachment, failure);
    }
  }

  #remember(record: AttachmentRecord): void {
    const { network, state, createdAtMs, updatedAtMs } = record;
    const key = formatAttachment(network.attachment);
    this.#forget(key);
    this.#records.set(key, record);
    for (const address of network.addresses.map(formatAddress))
      this.#withAddresses.set(address, new Set(this.#withAddresses.get(address)).add(key));
    if (state !== 'attached') return;
    this.#ofHostInterfaces.assign(network.hostInterfaceName, key, createdAtMs);
    for (const address of network.addresses) this.#ofAddresses.assign(formatAddress(address), key, updatedAtMs);
  }

  #forget(key: string): void {
    const network = this.#records.get(key)?.network;
    this.#records.delete(key);
    if (!network) return;
    this.#ofHostInterfaces.unassign(network.hostInterfaceName, key);
    for (const address of network.addresses.map(formatAddress)) {
      this.#ofAddresses.unassign(address, key);
      const rest = new Set(this.#withAddresses.get(address));
      rest.delete(key);
      if (rest.size > 0) this.#withAddresses.set(address, rest);
      else this.#withAddresses.delete(address);
    }
  }

  #givenAtMs(address: Address): number {
    return this.#ofAddresses.assignedAtMs(formatAddress(address)) ?? 0;
  }
}

function hasSameAddresses(a: PodNetwork, b: PodNetwork): boolean {
  return a.addresses.map(formatAddress).join(' ') === b.addresses.map(formatAddress).join(' ');
}

function isEqual(a: AttachmentRecord, b: AttachmentRecord): boolean {
  const withoutTimes = (record: AttachmentRecord): string =>
    encodeRecord({ ...record, createdAtMs: 0, updatedAtMs: 0 });
  return withoutTimes(a) === withoutTimes(b);
}

/** Tracks the holder of things that only one attachment can have: the latest to receive it. */
class Holders {
  readonly #given = new Map<string, readonly Assignment[]>();

  /** Repeated assignments: only the latest counts. */
  assign(thing: string, key: string, atMs: number): void {
    const remaining = this.#given.get(thing)?.filter((given) => given.key !== key) ?? [];
    const given = [...remaining, { key, atMs }].sort((a, b) => a.atMs - b.atMs);
    this.#given.set(thing, given);
  }

  unassign(thing: string, key: string): void {
    const remaining = this.#given.get(thing)?.filter((given) => given.key !== key) ?? [];
    if (remaining.length > 0) this.#given.set(thing, remaining);
    else this.#given.delete(thing);
  }

  /** Undefined: no holder. */
  holder(thing: string): string | undefined {
    return this.#given.get(thing)?.at(-1)?.key;
  }

  /** Latest assignment in epoch milliseconds; undefined: no holder. */
  assignedAtMs(thing: string): number | undefined {
    return this.#given.get(thing)?.at(-1)?.atMs;
  }

  /** Things assigned to several attachments, with these; the holder last. */
  *shared(): Generator<readonly [thing: string, keys: readonly string[]]> {
    for (const [thing, given] of this.#given) if (given.length > 1) yield [thing, given.map(({ key }) => key)];
  }
}

interface Assignment {
  readonly key: string;
  readonly atMs: number;
}
