import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { Condition } from '../conditions/conditions.js';
import type { RepairResult } from '../pods/conflicts.js';
import type { Dataplane } from '../pods/pods.js';
import type { AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';

interface PodRepairerOptions {
  readonly dataplane: Dataplane;
  readonly registry: AttachmentRegistry;
  /** Called with the record of a lost wire that needs IPAM's confirmation. Must not throw. */
  readonly onLostWire: (record: AttachmentRecord) => void;
}

interface Unreadable {
  readonly attachment: Attachment;
  readonly failure: Failure;
}

/** Repairs attachments from their records, one at a time, and remembers which pods cannot be read. */
export class PodRepairer {
  readonly #options: PodRepairerOptions;
  /** By attachment. */
  readonly #unreadable = new Map<string, Unreadable>();

  constructor(options: PodRepairerOptions) {
    this.#options = options;
  }

  /**
   * Repairs the differences from an attachment's record. Skips a pod that cannot be read until the next repair; passes a wire
   * that is lost to {@link PodRepairerOptions.onLostWire}.
   * @param confirmed - the record whose addresses IPAM has confirmed
   * @throws Failure as Dataplane.repairRecorded, but for POD_UNREADABLE
   */
  async repair(
    attachment: Attachment,
    signal: AbortSignal,
    confirmed?: AttachmentRecord,
  ): Promise<RepairResult | { readonly outcome: 'unreadable' }> {
    const key = formatAttachment(attachment);
    try {
      const result = await this.#options.dataplane.repairRecorded(attachment, signal, confirmed);
      this.#unreadable.delete(key);
      if (result.outcome === 'wire-lost') this.#options.onLostWire(result.record);
      return result;
    } catch (failure) {
      if (!(failure instanceof Failure) || failure.code !== 'POD_UNREADABLE') throw failure;
      this.#unreadable.set(key, { attachment, failure });
      return { outcome: 'unreadable' };
    }
  }

  /** Conditions for recorded pods that the last repair could not read. */
  conditions(): readonly Condition[] {
    for (const [key, { attachment }] of this.#unreadable) {
      if (this.#options.registry.get(attachment)?.state !== 'attached') this.#unreadable.delete(key);
    }
    return [...this.#unreadable].map(([key, { failure }]) => ({
      reason: 'PodUnreadable',
      message: `${key} is neither checked nor repaired: ${failure.message}`,
    }));
  }
}
