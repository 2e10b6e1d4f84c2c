import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Family } from '@podwire/shared/net/address';

import { familyOf, type Lease } from './lease.js';
import type { LeaseStock } from './stock.js';

interface EndedAddressesOptions {
  readonly registry: Pick<AttachmentRegistry, 'all' | 'get' | 'withAddress' | 'markReused'>;
  readonly stock: Pick<LeaseStock, 'coolDownMs' | 'isValid' | 'isTaken'>;
  /** Whether something without a record has the address. */
  readonly isOccupied: (address: string) => boolean;
  /** Time since the boot, in milliseconds. */
  readonly bootMs: () => number;
}

/**
 * The addresses of this node's own deleted pods, for its next pods while podwire-ipam is unreachable.
 *
 * An address whose return may have reached podwire-ipam is another node's by now. So a record of an earlier process, which may have
 * sent the return, is not used, nor one whose return was sent without an answer.
 */
export class EndedAddresses {
  readonly #options: EndedAddressesOptions;
  /** End of the attachments of dead records whose return was never sent, by the clock of the boot. */
  readonly #endedAtMs = new Map<string, number>();

  constructor(options: EndedAddressesOptions) {
    this.#options = options;
  }

  /** The attachment has ended now. */
  ended({ network }: AttachmentRecord): void {
    const key = formatAttachment(network.attachment);
    if (!this.#endedAtMs.has(key)) this.#endedAtMs.set(key, this.#options.bootMs());
  }

  /** A return of the record's addresses is about to be sent. */
  returning({ network }: AttachmentRecord): void {
    this.#endedAtMs.delete(formatAttachment(network.attachment));
  }

  /** Marks the record whose pod ended first, and returns its address of the family. @returns undefined if there is none */
  async take(family: Family): Promise<Lease | undefined> {
    const { registry } = this.#options;
    for (const [record, address] of this.#candidates(family)) {
      const allocated = record.allocation?.addresses.find((each) => each.address === address);
      if (!allocated || !(await registry.markReused(record))) continue;
      // A return was sent, or another ADD was faster.
      if (this.#isFree(record.network.attachment, address)) return { ...allocated, poolName: '' };
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
      const isUsable = record.state === 'dead' && (record.allocation?.isBound === true || stock.isValid);
      return isUsable && endedMs !== undefined && endedMs <= latestMs ? [{ record, endedMs }] : [];
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

  /** Whether this attachment is the last one that had the address. */
  #isFree(attachment: AttachmentRecord['network']['attachment'], address: string): boolean {
    const { registry, stock, isOccupied } = this.#options;
    if (stock.isTaken(address) || isOccupied(address)) return false;
    const last = this.#endedAtMs.get(formatAttachment(attachment));
    return (
      last !== undefined &&
      registry.withAddress(address).every(({ state, network }) => {
        const endedMs = this.#endedAtMs.get(formatAttachment(network.attachment));
        return state === 'dead' && endedMs !== undefined && endedMs <= last;
      })
    );
  }
}
