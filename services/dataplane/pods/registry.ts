import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { PodNetwork } from '../wiring/network.js';
import type { NetnsIdentity } from './kernel.js';
import type { RecordStore, UnreadableRecord } from './record-store.js';
import { compareIdentities, encodeRecord, type AttachmentRecord, type RecordState } from './record.js';

interface RegistryOptions {
  readonly store: RecordStore;
  /** Of this boot. */
  readonly bootId: string;
  readonly clock: Clock;
  /** Told when the store refuses a change, which is repeated by {@link AttachmentRegistry.flush}. */
  readonly onRefused: (attachment: Attachment, failure: unknown) => void;
}

/** An address that another attachment has. */
export interface LostAddress {
  readonly address: Address;
  /** Formatted. */
  readonly holder: string;
}

/** An address that several are attached with, each formatted. */
export interface SharedAddress {
  readonly address: string;
  /** Was attached with it last. */
  readonly holder: string;
  readonly others: readonly string[];
}

export interface Loaded {
  readonly unreadable: readonly UnreadableRecord[];
  /** Records of an earlier boot, which were dropped: their namespaces are gone. */
  readonly outlived: readonly AttachmentRecord[];
}

/**
 * What the node remembers of its attachments: in memory, and in a store for the next process.
 *
 * A store that refuses does not keep a pod from its network: what it lacks is remembered here and stored later. A process that
 * ends before that leaves links without records, which the next one keeps as they are. Changes of one attachment come one after
 * the other, as its lock is held.
 */
export class AttachmentRegistry {
  readonly #options: RegistryOptions;
  readonly #records = new Map<string, AttachmentRecord>();
  /** Of those that are attached, by name of the host interface: the one that was wired last. */
  readonly #ofHostInterfaces = new Holders();
  /** Of the same, by address: the one that was attached with it last. */
  readonly #ofAddresses = new Holders();
  /** By attachment: whether this process has seen, or made, rules of its source routing in the pod. Absent: it has not looked. */
  readonly #hasRules = new Map<string, boolean>();
  /** Attachments whose stored record is not what is remembered. */
  readonly #unstored = new Map<string, Attachment>();

  constructor(options: RegistryOptions) {
    this.#options = options;
  }

  /** Takes in what the process before has stored. To be called once, before anything else. @throws Failure STATE_IO */
  async load(): Promise<Loaded> {
    const { records, unreadable } = await this.#options.store.load();
    const isOfThisBoot = (record: AttachmentRecord): boolean => record.bootId === this.#options.bootId;
    for (const record of records.filter(isOfThisBoot)) this.#remember(record);
    const outlived = records.filter((record) => !isOfThisBoot(record));
    for (const { network } of outlived) await this.remove(network.attachment);
    return { unreadable, outlived };
  }

  get(attachment: Attachment): AttachmentRecord | undefined {
    return this.#records.get(formatAttachment(attachment));
  }

  /** Of the attached with a host interface of the name the one that was wired last: the others' wires are gone. */
  byHostInterface(name: string): AttachmentRecord | undefined {
    const key = this.#ofHostInterfaces.holder(name);
    return key === undefined ? undefined : this.#records.get(key);
  }

  /** Addresses of a pod that another attachment was attached with since, or has where this one is not recorded with them. */
  lostAddresses({ attachment, addresses }: Pick<PodNetwork, 'attachment' | 'addresses'>): LostAddress[] {
    const own = formatAttachment(attachment);
    return addresses.flatMap((address): LostAddress[] => {
      const holder = this.#ofAddresses.holder(formatAddress(address));
      return holder === undefined || holder === own ? [] : [{ address, holder }];
    });
  }

  /** Addresses that several are attached with. */
  sharedAddresses(): SharedAddress[] {
    return [...this.#ofAddresses.shared()].map(([address, keys]) => ({
      address,
      holder: keys.at(-1) ?? '',
      others: keys.slice(0, -1),
    }));
  }

  all(): AttachmentRecord[] {
    return [...this.#records.values()];
  }

  /** Whether another attachment has an interface in the same namespace, or may have, where the kernel does not tell. */
  hasBeside(attachment: Attachment, identity: NetnsIdentity): boolean {
    const key = formatAttachment(attachment);
    // Asked by every ADD: no copy of what a whole node has.
    for (const [other, record] of this.#records) {
      if (record.state === 'attached' && compareIdentities(record.identity, identity) !== 'other' && other !== key)
        return true;
    }
    return false;
  }

  /** Remembers, for this process, whether a pod was seen with rules of an attachment. Those that were seen may be there again. */
  noteRules(attachment: Attachment, isSeen: boolean): void {
    const key = formatAttachment(attachment);
    this.#hasRules.set(key, isSeen || this.#hasRules.get(key) === true);
  }

  /** Whether a pod may have rules of an attachment: they were seen, or nobody has looked since the start. */
  mayHaveRules(attachment: Attachment): boolean {
    return this.#hasRules.get(formatAttachment(attachment)) ?? true;
  }

  /**
   * Records that a pod is wired in a namespace, from when on its addresses are its own, whoever was attached with them before. Stores
   * nothing when that is recorded already. Never rejects.
   */
  async record(network: PodNetwork, identity: NetnsIdentity): Promise<void> {
    const before = this.get(network.attachment);
    const nowMs = this.#options.clock.nowMs();
    const isSameWire = before !== undefined && compareIdentities(before.identity, identity) !== 'other';
    const createdAtMs = isSameWire ? before.createdAtMs : nowMs;
    const { bootId } = this.#options;
    const lost = this.lostAddresses(network);
    const record: AttachmentRecord = {
      network,
      identity,
      bootId,
      state: 'attached',
      createdAtMs,
      // Behind those that had the addresses, also by a clock that was set back.
      updatedAtMs: Math.max(nowMs, ...lost.map(({ address }) => this.#givenAtMs(address) + 1)),
    };
    if (before && isEqual(before, record) && lost.length === 0) return;
    await this.#put(record);
  }

  /** @returns the record as it is then; undefined where the attachment has none. Never rejects. */
  async mark(attachment: Attachment, state: RecordState): Promise<AttachmentRecord | undefined> {
    const before = this.get(attachment);
    if (!before || before.state === state) return before;
    const record: AttachmentRecord = { ...before, state, updatedAtMs: this.#options.clock.nowMs() };
    await this.#put(record);
    return record;
  }

  /** Goes back to an earlier record of an attachment, or to none. Never rejects. */
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

  /** Stores what the store has refused before, and what somebody has removed from it. Never rejects. */
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
        // What was overtaken meanwhile must not be what is stored last.
      } while (this.#records.get(key) !== record);
      this.#unstored.delete(key);
    } catch (failure) {
      this.#unstored.set(key, attachment);
      this.#options.onRefused(attachment, failure);
    }
  }

  #remember(record: AttachmentRecord): void {
    const { network, state, createdAtMs, updatedAtMs } = record;
    const key = formatAttachment(network.attachment);
    this.#forget(key);
    this.#records.set(key, record);
    if (state !== 'attached') return;
    this.#ofHostInterfaces.give(network.hostInterfaceName, key, createdAtMs);
    for (const address of network.addresses) this.#ofAddresses.give(formatAddress(address), key, updatedAtMs);
  }

  #forget(key: string): void {
    const network = this.#records.get(key)?.network;
    this.#records.delete(key);
    if (!network) return;
    this.#ofHostInterfaces.take(network.hostInterfaceName, key);
    for (const address of network.addresses) this.#ofAddresses.take(formatAddress(address), key);
  }

  #givenAtMs(address: Address): number {
    return this.#ofAddresses.givenAtMs(formatAddress(address)) ?? 0;
  }
}

function isEqual(a: AttachmentRecord, b: AttachmentRecord): boolean {
  const timeless = (record: AttachmentRecord): string => encodeRecord({ ...record, createdAtMs: 0, updatedAtMs: 0 });
  return timeless(a) === timeless(b);
}

/** Who has something that one alone can have, of several that were given it: whoever was given it last. */
class Holders {
  readonly #given = new Map<string, readonly Given[]>();

  /** Given again, only the last time counts. */
  give(thing: string, key: string, atMs: number): void {
    const others = this.#given.get(thing)?.filter((given) => given.key !== key) ?? [];
    const given = [...others, { key, atMs }].sort((a, b) => a.atMs - b.atMs);
    this.#given.set(thing, given);
  }

  take(thing: string, key: string): void {
    const others = this.#given.get(thing)?.filter((given) => given.key !== key) ?? [];
    if (others.length > 0) this.#given.set(thing, others);
    else this.#given.delete(thing);
  }

  /** Undefined: nobody has it. */
  holder(thing: string): string | undefined {
    return this.#given.get(thing)?.at(-1)?.key;
  }

  /** When it was given last, in epoch milliseconds; undefined: nobody has it. */
  givenAtMs(thing: string): number | undefined {
    return this.#given.get(thing)?.at(-1)?.atMs;
  }

  /** The things that several were given, with them, the holder last. */
  *shared(): Generator<readonly [thing: string, keys: readonly string[]]> {
    for (const [thing, given] of this.#given) if (given.length > 1) yield [thing, given.map(({ key }) => key)];
  }
}

interface Given {
  readonly key: string;
  readonly atMs: number;
}
