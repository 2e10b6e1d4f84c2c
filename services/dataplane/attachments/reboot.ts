import type { AddressBook } from './address-book.js';
import type { AttachmentEvents } from './events.js';
import { judgeEndpoint, type Boot } from './giving-back.js';
import type { AttachmentRegistry } from './registry.js';

export interface RebootOptions {
  readonly addressBook: AddressBook;
  readonly registry: AttachmentRegistry;
  readonly events: AttachmentEvents;
  /** Name of this node at IPAM. */
  readonly nodeName: string;
  readonly boot: Boot;
}

/**
 * Gives back what the pods of earlier boots of this node hold at IPAM: they died with it. To be repeated until it succeeds, and not
 * any more then: what a boot has left is complete when it ends. Idempotent.
 * @throws Failure when IPAM does not answer; what was given back before stays so
 */
export async function releaseEarlierBoots(options: RebootOptions, signal: AbortSignal): Promise<void> {
  const { addressBook, registry, events, nodeName, boot } = options;
  for (const endpoint of await addressBook.endpointsOf(nodeName, signal)) {
    const isAttached = registry.get(endpoint.attachment) !== undefined;
    const verdict = judgeEndpoint(endpoint, boot, isAttached);
    if (verdict.spared !== undefined) events.endpointSpared(endpoint.attachment, verdict.spared);
    if (!verdict.died) continue;
    const released = await addressBook.release(endpoint, signal);
    events.addressesReleased(endpoint.attachment, released, 'reboot');
  }
}
