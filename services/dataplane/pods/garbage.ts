import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { forEachConcurrently } from '@podwire/shared/reconcile/concurrently';

import { attachmentOfAlias } from '../wiring/network.js';
import { isCalicoAttachment } from './calico-attachment.js';
import type { DetachRequest } from './conflicts.js';
import type { AttachmentEvents } from './events.js';
import type { Kernel } from './kernel.js';
import type { PodWiring } from './pods.js';

import type { AttachmentRegistry } from '../records/registry.js';

/** Concurrent deletions. The kernel removes this many in one batch. */
const DELETION_CONCURRENCY = 32;

export interface GarbageRequest {
  /** Every attachment to keep. */
  readonly valid: readonly Attachment[];
  /** Only attachments of this network are considered; undefined means all. */
  readonly network: string | undefined;
}

interface GarbageResult {
  readonly removed: readonly Attachment[];
  readonly failed: readonly { readonly attachment: Attachment; readonly failure: Failure }[];
}

interface GarbageOptions {
  readonly kernel: Kernel;
  readonly dataplane: PodWiring;
  readonly registry: AttachmentRegistry;
  readonly events: AttachmentEvents;
}

/** Removes wires and records of attachments that the runtime no longer lists, for CNI's GC. */
export class GarbageCollector {
  readonly #options: GarbageOptions;

  constructor(options: GarbageOptions) {
    this.#options = options;
  }

  /**
   * Removes attachments that are not valid. Continues after failures, and reports them. Skips attachments that a call is wiring
   * or has wired since this call began, as the caller's list may predate them. Waits for repairs of an attachment in progress.
   * Idempotent.
   * @throws Failure KERNEL_REFUSED when the links cannot be listed, or the signal's
   */
  async collect({ valid, network }: GarbageRequest, signal: AbortSignal): Promise<GarbageResult> {
    const { dataplane, events, registry } = this.#options;
    const wiredAtMs = new Map(
      registry.all().map(({ network: pod, createdAtMs }) => [formatAttachment(pod.attachment), createdAtMs]),
    );
    const stays = new Set([...valid.map(formatAttachment), ...dataplane.wiringAttachments()]);
    const garbage = (await this.#attached()).filter(
      ({ attachment }) =>
        (network === undefined || attachment.network === network) && !stays.has(formatAttachment(attachment)),
    );
    const removed: Attachment[] = [];
    const failed: { attachment: Attachment; failure: Failure }[] = [];
    await forEachConcurrently(garbage, DELETION_CONCURRENCY, async (detachment) => {
      const { attachment } = detachment;
      if (dataplane.isWiring(attachment) || this.#isOther(attachment, wiredAtMs)) return;
      try {
        await dataplane.detach(detachment, signal);
        removed.push(attachment);
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        failed.push({ attachment, failure: error });
      }
    });
    events.garbageCollected(removed.length, failed.length);
    return { removed, failed };
  }

  /**
   * Attachments that have a link, or a record that expects one. Excludes dead ones, whose wires are gone, and wires of Calico's
   * contract: the runtime does not know their names, so no GC list contains them.
   */
  async #attached(): Promise<DetachRequest[]> {
    const all = new Map<string, DetachRequest>();
    const records = this.#options.registry.all();
    for (const { network, state } of records) {
      const { attachment, hostInterfaceName } = network;
      if (state !== 'dead') all.set(formatAttachment(attachment), { attachment, hostInterfaceName });
    }
    for (const { name, alias } of await this.#options.kernel.veths()) {
      const attachment = attachmentOfAlias(alias);
      if (attachment) all.set(formatAttachment(attachment), { attachment, hostInterfaceName: name });
    }
    for (const { network } of records)
      if (isCalicoAttachment(network)) all.delete(formatAttachment(network.attachment));
    return [...all.values()];
  }

  /** Whether the attachment was wired since. Compares for inequality, as the clock may have been set back. */
  #isOther(attachment: Attachment, wiredAtMs: ReadonlyMap<string, number>): boolean {
    const record = this.#options.registry.get(attachment);
    return record !== undefined && record.createdAtMs !== wiredAtMs.get(formatAttachment(attachment));
  }
}
