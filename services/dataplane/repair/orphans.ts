import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { isAborted } from '@podwire/shared/failure/signal';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AttachmentEvents } from '../pods/events.js';
import { findHostLinks } from '../pods/host-links.js';
import type { Kernel } from '../pods/kernel.js';
import type { PodWiring } from '../pods/pods.js';
import { compareIdentities, type AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import type { ObservedLink } from '../wiring/observed.js';
import { isMadeFor } from '../wiring/wire.js';

/** Minimum time between the two observations that confirm a dead namespace, in milliseconds. */
const CONFIRMATION_MS = 10_000;

interface OrphanCollectorOptions {
  readonly kernel: Kernel;
  readonly dataplane: PodWiring;
  readonly registry: AttachmentRegistry;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** Called when the addresses of a record have to be returned to podwire-ipam. Must not throw. */
  readonly onUnsettled?: ((record: AttachmentRecord) => void) | undefined;
}

/**
 * Detects attachments whose network namespaces disappeared without a DetachPod, and removes their remains.
 *
 * Difficulties:
 * - A live pod must never be taken for a dead one. A missing path proves nothing, as a process keeps a namespace alive; nor does
 *   an inode, as the kernel reuses it at once. Proof is that the wire is cut and that the path has no namespace or a different one;
 *   observed twice, with time in between for operations in flight.
 */
export class OrphanCollector {
  readonly #options: OrphanCollectorOptions;
  /** When each record was first observed dead. A replaced record is a new object. */
  readonly #suspectedAtMs = new WeakMap<AttachmentRecord, number>();

  constructor(options: OrphanCollectorOptions) {
    this.#options = options;
  }

  /**
   * Checks every recorded attachment, and removes the remains of confirmed dead ones. Reports an attachment that the kernel
   * refuses, and continues with the rest.
   * @throws Failure KERNEL_REFUSED when the kernel cannot list its links
   */
  async sweep(signal: AbortSignal): Promise<void> {
    const { kernel, registry, events } = this.#options;
    const links = new Map((await kernel.veths()).map((link) => [link.name, link]));
    for (const record of registry.all()) {
      if (signal.aborted) break;
      if (record.state !== 'attached') continue;
      const { attachment, hostInterfaceName: name } = record.network;
      try {
        await this.#checkRecord(record, links.get(name), signal);
      } catch (error) {
        if (!isAborted(signal)) events.taskFailed(`orphan check of ${formatAttachment(attachment)}`, error);
      }
    }
  }

  async #checkRecord(record: AttachmentRecord, link: ObservedLink | undefined, signal: AbortSignal): Promise<void> {
    const { dataplane, clock } = this.#options;
    // A call replaces the record object. A mere read, such as the full check, is no sign of life.
    if (dataplane.isBusy(record.network.attachment)) return;
    if (!(await this.#isDead(record, link))) {
      this.#suspectedAtMs.delete(record);
      return;
    }
    const suspectedAtMs = this.#suspectedAtMs.get(record);
    const nowMs = clock.monotonicMs();
    if (suspectedAtMs === undefined) this.#suspectedAtMs.set(record, nowMs);
    else if (nowMs - suspectedAtMs >= CONFIRMATION_MS) await this.#removeDead(record, signal);
  }

  async #isDead({ network, identity }: AttachmentRecord, link: ObservedLink | undefined): Promise<boolean> {
    // The peer of a veth is in a live namespace: a namespace deletes its links when it ends.
    if (link && isMadeFor(link, network.attachment) && link.peerIndex !== undefined) return false;
    const found = await this.#options.kernel.identify(network.netns);
    return found === undefined || compareIdentities(identity, found) === 'other';
  }

  /** Removes the remains on the node under the attachment's lock, unless the record was replaced meanwhile. */
  async #removeDead(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { kernel, dataplane, registry, events } = this.#options;
    const { attachment, hostInterfaceName: name, netns } = record.network;
    await dataplane.runExclusive({ attachment, hostInterfaceName: name }, signal, async () => {
      if (registry.get(attachment) !== record) return;
      // An operator may have renamed the link; its peer lives as long as the pod.
      const ends = await findHostLinks(kernel, attachment, [name]);
      const link = ends.find((end) => isMadeFor(end, attachment)) ?? ends[0];
      if (!(await this.#isDead(record, link))) return;
      if (link && isMadeFor(link, attachment)) await kernel.deleteHostLink(link);
      const dead = await registry.end(attachment);
      await dataplane.updateFilters(name);
      events.attachmentDied(attachment, netns);
      if (dead) this.#options.onUnsettled?.(dead);
    });
  }
}
