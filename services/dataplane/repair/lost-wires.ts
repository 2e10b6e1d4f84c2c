import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AttachmentEvents } from '../pods/events.js';
import { findHostLinks } from '../pods/host-links.js';
import type { Kernel } from '../pods/kernel.js';
import type { PodWiring } from '../pods/pods.js';
import type { AttachmentRecord } from '../records/record.js';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import type { AttachmentRegistry } from '../records/registry.js';
import { isMadeFor } from '../wiring/wire.js';

/** Time after which a missing endpoint counts as lost, not as being deleted, in milliseconds. */
const DELETION_TIMEOUT_MS = 10_000;

/** IPAM is unreachable, or the caller has gone. */
const UNANSWERED_CODES: ReadonlySet<FailureCode> = new Set(['UNREACHABLE', 'DEADLINE_EXCEEDED', 'CANCELLED']);

interface LostWireQueueOptions {
  readonly kernel: Kernel;
  readonly dataplane: PodWiring;
  readonly registry: AttachmentRegistry;
  /** podwire-ipam's record of an attachment; undefined if it has no addresses. */
  readonly endpoint: EndpointLookup;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** Recreates the wire of a record. Must not throw. */
  readonly restore: (record: AttachmentRecord) => Promise<void>;
}

/**
 * Wires that were lost without a DetachPod, of pods with addresses from IPAM. Restores a wire when IPAM confirms the pod's
 * addresses; drops it when IPAM has released them, as another pod may have them by then.
 *
 * Difficulty: Calico's plugin deletes the endpoint, then the interface, then releases the addresses, which takes about
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
    let failure: unknown;
    for (const record of [...this.#queued.values()]) {
      try {
        await this.#processRecord(record, signal);
      } catch (error) {
        failure ??= error;
        // Further calls would fail too.
        if (error instanceof Failure && UNANSWERED_CODES.has(error.code)) break;
      }
    }
    if (failure !== undefined && !signal.aborted) this.#options.events.restorationsDelayed(this.#queued.size, failure);
  }

  async #processRecord(queued: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { endpoint, registry, events, restore } = this.#options;
    const { attachment } = queued.network;
    const found = registry.get(attachment);
    // A binding replaces the record, and leaves the network.
    const record = found?.network === queued.network ? found : queued;
    const isCurrent = (): boolean => registry.get(attachment) === record;
    // podwire-ipam does not know the attachment yet, and lets no other holder have the lease.
    const isLease = record.allocation?.isBound === false;
    const evaluate = async () => (isLease ? 'held' : evaluateLoss(record, await endpoint(attachment, signal)));
    const state = isCurrent() ? await evaluate() : undefined;
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
      await dataplane.updateFilters(name);
      events.lostWireDropped(attachment);
    });
  }
}

/** podwire-ipam's record of an attachment. */
export interface HeldEndpoint {
  readonly addresses: readonly AllocatedAddress[];
  /** The namespace that the addresses were requested for; undefined when the request named none. */
  readonly netns: { readonly bootId: string; readonly inode: bigint } | undefined;
}

/** Throws podwire-ipam's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED. */
export type EndpointLookup = (attachment: Attachment, signal: AbortSignal) => Promise<HeldEndpoint | undefined>;

/**
 * IPAM's state for a pod whose whole wire is gone: all its addresses for its namespace (held); all, but no endpoint that names
 * the namespace (endpoint-lost); other addresses or only some (differs); none (released).
 */
type LossState = 'held' | 'endpoint-lost' | 'differs' | 'released';

function evaluateLoss({ network, identity, bootId }: AttachmentRecord, endpoint: HeldEndpoint | undefined): LossState {
  const held = new Set(endpoint?.addresses.map(({ address }) => address));
  const missing = network.addresses.map(formatAddress).filter((address) => !held.has(address));
  if (missing.length === network.addresses.length) return 'released';
  if (missing.length > 0) return 'differs';
  if (!endpoint?.netns) return 'endpoint-lost';
  const { netns } = endpoint;
  return netns.bootId === bootId && netns.inode === identity.inode ? 'held' : 'differs';
}
