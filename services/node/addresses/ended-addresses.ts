import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Family } from '@podwire/shared/net/address';

import { familyOf, type Lease } from './lease.js';
import type { LeaseStock } from './stock.js';

interface EndedAddressesOptions {
  readonly registry: Pick<AttachmentRegistry, 'all' | 'get' | 'withAddress' | 'markReused'>;
  readonly stock: Pick<LeaseStock, 'coolDownMs' | 'isValid' | 'isTaken' | 'takeReused' | 'ended' | 'noteEnded'>;
  /** Whether something without a record has the address. */
  readonly isOccupied: (address: string) => boolean;
  /** Time since the boot, in milliseconds. */
  readonly bootMs: () => number;
}

/**
 * The addresses of this node's own deleted pods, for its next pods while podwire-ipam is unreachable.
 *
 * An address whose return may have reached podwire-ipam is another node's by now: a record whose return was sent without an answer is
 * not used. The lease file names the records whose return was never sent, for the next process. An end is stored late, at the cost of
 * one address; that a return is about to be sent is stored before it is.
 */
export class EndedAddresses {
  readonly #options: EndedAddressesOptions;
  /** End of the attachments of dead records whose return was never sent, by the clock of the boot. */
  readonly #endedAtMs: Map<string, number>;
  /** Attachments of dead records whose return may have been sent: a further DEL of them is no end. */
  readonly #sent: Set<string>;
  /** Whether the file has other ends. */
  #isOutdated = false;

  /** @param options - with a loaded stock */
  constructor(options: EndedAddressesOptions) {
    const { registry, stock } = options;
    this.#options = options;
    const dead = registry.all().filter(({ state }) => state === 'dead');
    const keys = new Set(dead.map(({ network }) => formatAttachment(network.attachment)));
    this.#endedAtMs = new Map(stock.ended.filter(([key]) => keys.has(key)));
    this.#sent = new Set([...keys].filter((key) => !this.#endedAtMs.has(key)));
  }

  /** The attachment has ended, now or before. */
  markEnded({ network }: AttachmentRecord): void {
    const key = formatAttachment(network.attachment);
    if (this.#endedAtMs.has(key) || this.#sent.has(key)) return;
    this.#endedAtMs.set(key, this.#options.bootMs());
    this.#isOutdated = true;
  }

  /** Returns of the records' addresses are about to be sent, or podwire-ipam may have given the addresses to other holders. */
  markSent(records: readonly AttachmentRecord[]): void {
    const stored = new Set(this.#options.stock.ended.map(([key]) => key));
    const keys = records.map(({ network }) => formatAttachment(network.attachment));
    for (const key of keys) {
      this.#endedAtMs.delete(key);
      this.#sent.add(key);
    }
    if (keys.some((key) => stored.has(key))) this.#store();
  }

  /** The addresses of the attachment are returned. */
  markReturned({ network }: AttachmentRecord): void {
    this.#sent.delete(formatAttachment(network.attachment));
  }

  /** Ended addresses must not be used any more: podwire-ipam may have given them to another holder without a return. */
  clear(): void {
    for (const key of this.#endedAtMs.keys()) this.#sent.add(key);
    this.#endedAtMs.clear();
    if (this.#options.stock.ended.length > 0) this.#store();
  }

  /** Stores the ends for the next process. */
  flush(): void {
    if (this.#isOutdated && this.#endedAtMs.size > 0) this.#store();
  }

  #store(): void {
    this.#isOutdated = false;
    this.#options.stock.noteEnded([...this.#endedAtMs]);
  }

  /** Takes the address of the family whose pod ended first, and marks the record. @returns undefined if there is none */
  async take(family: Family): Promise<Lease | undefined> {
    const { registry, stock } = this.#options;
    for (const [record, address] of this.#candidates(family)) {
      const allocated = record.allocation?.addresses.find((each) => each.address === address);
      if (!allocated || !(await registry.markReused(record))) continue;
      // A return was sent, or another ADD was faster.
      if (!this.#isFree(record.network.attachment, address)) continue;
      const lease = { ...allocated, poolName: '' };
      // No await before this line: another ADD may have marked the same record.
      stock.takeReused(lease);
      return lease;
    }
    return undefined;
  }

  /** Whether there is an address of the family. */
  has(family: Family): boolean {
    return this.#candidates(family).length > 0;
  }

  #candidates(family: Family): (readonly [AttachmentRecord, string])[] {
    const { registry, stock, bootMs } = this.#options;
    const latestMs = bootMs() - stock.coolDownMs;
    const dead = registry.all().flatMap((record) => {
      const endedMs = this.#endedAtMs.get(formatAttachment(record.network.attachment));
      return record.state === 'dead' && endedMs !== undefined && endedMs <= latestMs ? [{ record, endedMs }] : [];
    });
    return dead
      .toSorted((a, b) => a.endedMs - b.endedMs)
      .flatMap(({ record }) =>
        (record.allocation?.addresses ?? []).flatMap(({ address }) => {
          const isFree = familyOf({ address }) === family && this.#isFree(record.network.attachment, address);
          return isFree ? [[record, address] as const] : [];
        }),
      );
  }

  /** Whether this attachment is the last one that had the address, which is the node's until its return. */
  #isFree(attachment: AttachmentRecord['network']['attachment'], address: string): boolean {
    const { registry, stock, isOccupied } = this.#options;
    if (stock.isTaken(address) || isOccupied(address)) return false;
    const last = this.#endedAtMs.get(formatAttachment(attachment));
    const holders = registry.withAddress(address);
    const isBound = holders.some(({ allocation }) => allocation?.isBound === true);
    return (
      (isBound || stock.isValid) &&
      last !== undefined &&
      holders.every(({ state, network }) => {
        const endedMs = this.#endedAtMs.get(formatAttachment(network.attachment));
        return state === 'dead' && endedMs !== undefined && endedMs <= last;
      })
    );
  }
}
