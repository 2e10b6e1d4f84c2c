import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AttachmentEvents } from '../pods/events.js';
import { findHostLinks } from '../pods/host-links.js';
import type { Kernel } from '../pods/kernel.js';
import type { Dataplane } from '../pods/pods.js';
import type { AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import { isMadeFor } from '../wiring/wire.js';
import { evaluateLoss, releaseEach, type AddressBook } from './orphans.js';

/** After this time a missing endpoint counts as lost, not as being deleted, in milliseconds. */
const DELETION_TIMEOUT_MS = 10_000;

interface LostWireQueueOptions {
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
 * Wires that were lost without a DetachPod, of pods with addresses from IPAM. Restores a wire when IPAM confirms the pod's
 * addresses; drops it when IPAM has released them, as another pod may have them by then.
 *
 * What makes this hard: Calico's plugin deletes the endpoint, then the interface, then releases the addresses, which takes about
 * 0.1 s. Until then IPAM has the addresses without the endpoint, as when only the endpoint was lost.
 */
export class LostWireQueue {
  readonly #options: LostWireQueueOptions;
  /** Records to ask IPAM about, by attachment. */
  readonly #queued = new Map<string, AttachmentRecord>();
  /** When IPAM first returned a record's addresses without its endpoint. */
  readonly #withoutEndpointSinceMs = new WeakMap<AttachmentRecord, number>();
  /** Records whose wire stays lost; each is reported once. */
  readonly #reported = new WeakSet<AttachmentRecord>();

  constructor(options: LostWireQueueOptions) {
    this.#options = options;
  }

  /** Queues a record for the next {@link process}. */
  add(record: AttachmentRecord): void {
    this.#queued.set(formatAttachment(record.network.attachment), record);
  }

  /** Asks IPAM about each queued wire. Never rejects: unanswered requests are retried. */
  async process(signal: AbortSignal): Promise<void> {
    const unanswered = await releaseEach([...this.#queued.values()], (record) => this.#processRecord(record, signal));
    if (unanswered && !signal.aborted) this.#options.events.restorationsDelayed(unanswered.count, unanswered.failure);
  }

  async #processRecord(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { addressBook, registry, events, restore } = this.#options;
    const { attachment } = record.network;
    // podwire-ipam does not know the attachment yet.
    if (registry.get(attachment)?.allocation?.isBound === false) return;
    const isCurrent = (): boolean => registry.get(attachment) === record;
    const state = isCurrent() ? evaluateLoss(record, await addressBook.endpoint(attachment, signal)) : undefined;
    if (state === 'endpoint-lost' && !this.#isDeletionOver(record)) return;
    this.#queued.delete(formatAttachment(attachment));
    if (!isCurrent()) return;
    switch (state) {
      case undefined:
        return;
      case 'held':
      case 'endpoint-lost':
        return restore(record);
      case 'released':
        return this.#drop(record, signal);
      case 'differs':
        // The next full check queues it again.
        if (!this.#reported.has(record)) events.wireNotRestored(attachment);
        this.#reported.add(record);
    }
  }

  #isDeletionOver(record: AttachmentRecord): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    const sinceMs = this.#withoutEndpointSinceMs.get(record) ?? nowMs;
    this.#withoutEndpointSinceMs.set(record, sinceMs);
    return nowMs - sinceMs >= DELETION_TIMEOUT_MS;
  }

  async #drop(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { kernel, dataplane, registry, events } = this.#options;
    const { attachment, hostInterfaceName: name } = record.network;
    await dataplane.runExclusive({ attachment, hostInterfaceName: name }, signal, async () => {
      if (registry.get(attachment) !== record) return;
      // A call may have rewired the same pod, which leaves the record unchanged.
      const ends = await findHostLinks(kernel, attachment, [name]);
      if (ends.some((end) => isMadeFor(end, attachment))) return;
      await registry.remove(attachment);
      await dataplane.updateGuard(name);
      events.lostWireDropped(attachment);
    });
  }
}
