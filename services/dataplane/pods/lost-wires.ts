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

/** After this time a missing endpoint counts as lost, not as being deleted, in milliseconds. */
const DELETION_MS = 10_000;

interface LostWiresOptions {
  readonly kernel: Kernel;
  readonly dataplane: Dataplane;
  readonly registry: AttachmentRegistry;
  readonly addressBook: AddressBook;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** Recreates the wire of a record. Must not throw. */
  readonly restore: (record: AttachmentRecord) => Promise<void>;
}

/**
 * Handles wires that are lost without a DetachPod, of pods with addresses from IPAM. Restores a wire when IPAM confirms the pod's
 * addresses; drops it when IPAM has released them, as another pod may have them by then.
 *
 * What makes this hard: Calico's plugin deletes the endpoint, then the interface, then releases the addresses, which takes about
 * 0.1 s. Until then IPAM has the addresses without the endpoint, as when only the endpoint was lost.
 */
export class LostWires {
  readonly #options: LostWiresOptions;
  /** By attachment. */
  readonly #waiting = new Map<string, AttachmentRecord>();
  /** When IPAM first reported a record without its endpoint. */
  readonly #doubtedAtMs = new WeakMap<AttachmentRecord, number>();
  /** Reported once each. */
  readonly #kept = new WeakSet<AttachmentRecord>();

  constructor(options: LostWiresOptions) {
    this.#options = options;
  }

  /** Queues a record for the next {@link settle}. */
  add(record: AttachmentRecord): void {
    this.#waiting.set(formatAttachment(record.network.attachment), record);
  }

  /** Asks IPAM about each queued wire. Never rejects: unanswered requests are repeated. */
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
        // The next full check queues it again.
        if (!this.#kept.has(record)) events.wireKeptLost(attachment);
        this.#kept.add(record);
    }
  }

  #isOld(record: AttachmentRecord): boolean {
    const nowMs = this.#options.clock.nowMs();
    const sinceMs = this.#doubtedAtMs.get(record) ?? nowMs;
    // A clock that was set back restarts the period.
    this.#doubtedAtMs.set(record, Math.min(sinceMs, nowMs));
    return nowMs - sinceMs >= DELETION_MS;
  }

  async #forget(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { kernel, dataplane, registry, events } = this.#options;
    const { attachment, hostInterfaceName: name } = record.network;
    await dataplane.exclusively({ attachment, hostInterfaceName: name }, signal, async () => {
      if (registry.get(attachment) !== record) return;
      // A call may have rewired the same pod, which leaves the record unchanged.
      const ends = await hostEndsOf(kernel, attachment, [name]);
      if (ends.some((end) => isMadeFor(end, attachment))) return;
      await registry.remove(attachment);
      await dataplane.reguard(name);
      events.lostWireForgotten(attachment);
    });
  }
}
