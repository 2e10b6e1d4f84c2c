import type { Attachment } from '@podwire/shared/attachment/attachment';

import { allocate, type Allocation } from '../allocator/allocate.js';
import { getEndpoint } from '../allocator/listing.js';
import type { AllocationRequest, Endpoint } from '../allocator/records.js';
import { release, releasedWith, type Released } from '../allocator/release.js';
import type { View } from '../allocator/view.js';
import { nodeLane, read, unknownNodes, type IpamOptions } from './options.js';

/** What a caller of Allocate says; the rest is the service's. */
export type AskedAllocation = Omit<AllocationRequest, 'unknownNodes'>;

/** Gives addresses to attachments and takes them back. */
export class Addresses {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** Gives an attachment its addresses. Idempotent. @throws Failure as the decision `allocate` does */
  async allocate(asked: AskedAllocation, signal: AbortSignal): Promise<Allocation> {
    const { updates, events, clock } = this.#options;
    const nowMs = clock.nowMs();
    const request = { ...asked, unknownNodes: unknownNodes(this.#options) };
    try {
      const lane = nodeLane(request.nodeName);
      const allocation = await updates.update(lane, (view) => allocate(view, { request, nowMs }), { signal });
      if (allocation.added.length > 0) events.addressesAllocated(allocation);
      else events.allocationRepeated(allocation);
      return allocation;
    } catch (error) {
      events.allocationFailed(error);
      throw error;
    }
  }

  /** Gives back all that an attachment holds. Idempotent. */
  async release(attachment: Attachment, signal: AbortSignal): Promise<Released> {
    const { updates, events, clock } = this.#options;
    const lane = await updates.peek((view) => laneOf(view, attachment));
    const nowMs = clock.nowMs();
    const released = await updates.update(lane, (view) => release(view, attachment, nowMs), { signal });
    events.addressesReleased(released.addresses);
    return released;
  }

  /** @throws Failure ENDPOINT_NOT_FOUND */
  getEndpoint(attachment: Attachment, signal: AbortSignal): Promise<Endpoint> {
    return read(this.#options, (view) => getEndpoint(view, attachment), signal);
  }
}

/** The lane of the node whose block the attachment's address is from. Only a choice of the cheaper way: any lane is right. */
function laneOf(view: View, attachment: Attachment): string {
  const [held] = releasedWith(view, attachment);
  return nodeLane(held?.block.owner?.name ?? '');
}
