import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Clock } from '@podwire/shared/runtime/clock';

import { isMadeFor } from '../wiring/wire.js';
import type { AttachmentEvents } from './events.js';
import { hostEndsOf } from './host-ends.js';
import type { Kernel } from './kernel.js';
import { judgeLoss, releaseEach, type AddressBook } from './orphans.js';
import type { Dataplane } from './pods.js';
import type { AttachmentRecord } from './record.js';
import type { AttachmentRegistry } from './registry.js';

/** After this time an endpoint that is missing is lost, and not just being deleted, in milliseconds. */
const DELETION_MS = 10_000;

interface LostWiresOptions {
  readonly kernel: Kernel;
  readonly dataplane: Dataplane;
  readonly registry: AttachmentRegistry;
  readonly addressBook: AddressBook;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** Makes the wire of a record again. Must not throw. */
  readonly restore: (record: AttachmentRecord) => Promise<void>;
}

/**
 * Wires that are gone whole, without a DetachPod, of pods that have their addresses from IPAM. Each is restored once IPAM has said that
 * the addresses are still the pod's, and forgotten once it has said that they are not: another pod may have them by then.
 *
 * What makes this hard: Calico's plugin deletes the endpoint, then the interface, then releases the addresses, which takes it some 0.1 s.
 * Until then IPAM has the addresses without the endpoint, as also where the endpoint alone was lost.
 */
export class LostWires {
  readonly #options: LostWiresOptions;
  /** By attachment. */
  readonly #waiting = new Map<string, AttachmentRecord>();
  /** When a record was first seen without its endpoint. */
  readonly #doubtedAtMs = new WeakMap<AttachmentRecord, number>();
  /** Reported once each. */
  readonly #kept = new WeakSet<AttachmentRecord>();

  constructor(options: LostWiresOptions) {
    this.#options = options;
  }

  /** Has IPAM asked about a record by the next {@link settle}. */
  add(record: AttachmentRecord): void {
    this.#waiting.set(formatAttachment(record.network.attachment), record);
  }

  /** Asks IPAM about each wire that waits. Never rejects: what IPAM does not answer is asked again. */
  async settle(signal: AbortSignal): Promise<void> {
    const left = await releaseEach([...this.#waiting.values()], (record) => this.#settle(record, signal));
    if (left && !signal.aborted) this.#options.events.restorationsDelayed(left.count, left.failure);
  }

  async #settle(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { addressBook, registry, events, restore } = this.#options;
    const { attachment } = record.network;
    const isStill = (): boolean => registry.get(attachment) === record;
    const verdict = isStill() ? judgeLoss(record, await addressBook.endpoint(attachment, signal)) : undefined;
    if (verdict === 'endpoint-lost' && !this.#isOld(record)) return;
    this.#waiting.delete(formatAttachment(attachment));
    if (!isStill()) return;
    switch (verdict) {
      case undefined:
        return;
      case 'held':
      case 'endpoint-lost':
        return restore(record);
      case 'released':
        return this.#forget(record, signal);
      case 'differs':
        // The next full check has it asked again.
        if (!this.#kept.has(record)) events.wireKeptLost(attachment);
        this.#kept.add(record);
    }
  }

  #isOld(record: AttachmentRecord): boolean {
    const nowMs = this.#options.clock.nowMs();
    const sinceMs = this.#doubtedAtMs.get(record) ?? nowMs;
    // A clock that was set back begins again.
    this.#doubtedAtMs.set(record, Math.min(sinceMs, nowMs));
    return nowMs - sinceMs >= DELETION_MS;
  }

  async #forget(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { kernel, dataplane, registry, events } = this.#options;
    const { attachment, hostInterfaceName: name } = record.network;
    await dataplane.exclusively({ attachment, hostInterfaceName: name }, signal, async () => {
      if (registry.get(attachment) !== record) return;
      // A call may have wired the same pod again, which leaves the record as it was.
      const ends = await hostEndsOf(kernel, attachment, [name]);
      if (ends.some((end) => isMadeFor(end, attachment))) return;
      await registry.remove(attachment);
      await dataplane.reguard(name);
      events.lostWireForgotten(attachment);
    });
  }
}
