import type { AttachmentRegistry } from '../pods/registry.js';
import type { AddressBook } from './address-book.js';
import type { AttachmentEvents } from './events.js';
import { judgeEndpoint, type Boot } from './giving-back.js';
import { releaseEach } from './release-each.js';

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
 * @throws Failure when IPAM does not answer, or refuses one; what was given back stays so
 */
export async function releaseEarlierBoots(options: RebootOptions, signal: AbortSignal): Promise<void> {
  const { addressBook, registry, events, nodeName, boot } = options;
  const endpoints = await addressBook.endpointsOf(nodeName, signal);
  const died = endpoints.filter((endpoint) => {
    const isAttached = registry.get(endpoint.attachment) !== undefined;
    const verdict = judgeEndpoint(endpoint, boot, isAttached);
    if (verdict.spared !== undefined) events.endpointSpared(endpoint.attachment, verdict.spared);
    return verdict.died;
  });
  const left = await releaseEach(died, async (endpoint) => {
    const released = await addressBook.release(endpoint, signal);
    events.addressesReleased(endpoint.attachment, released, 'reboot');
  });
  if (left) throw left.failure;
}
