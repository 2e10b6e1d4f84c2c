import type { Prefix } from '@podwire/shared/net/prefix';

import type { Page } from '../allocator/listing.js';
import type { Handle } from '../allocator/records.js';
import { continueHandleRelease, heldByHandle, type HandleRelease } from '../allocator/release-handle.js';
import type { HeldAddress } from '../blocks/holding.js';
import { blockLane, read, type IpamOptions } from '../engine/updates/operation.js';
import { listHandleAddresses, listHandles, type HandleAddressQuery, type HandleQuery } from '../handles/handles.js';

/** Shows and releases what belongs to a handle. */
export class Handles {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  list(query: HandleQuery, signal: AbortSignal): Promise<Page<Handle>> {
    return read(this.#options, (view) => listHandles(view, query), signal);
  }

  /** @throws Failure HANDLE_NOT_FOUND */
  addresses(query: HandleAddressQuery, signal: AbortSignal): Promise<Page<HeldAddress>> {
    return read(this.#options, (view) => listHandleAddresses(view, query), signal);
  }

  /** Gives back all that a handle holds, in as many transactions as it takes. Idempotent. @returns what was given back */
  async release(asked: Omit<HandleRelease, 'nowMs'>, signal: AbortSignal): Promise<Prefix[]> {
    const { updates, events, clock } = this.#options;
    const addresses: Prefix[] = [];
    for (let state = 'more'; state === 'more';) {
      const release = { nowMs: clock.nowMs(), ...asked };
      const lane = await updates.peek((view) => blockLane(heldByHandle(view, release)[0]?.block));
      const step = await updates.update(lane, (view) => continueHandleRelease(view, release), { signal });
      events.addressesReleased(step.addresses);
      addresses.push(...step.addresses);
      ({ state } = step);
    }
    return addresses;
  }
}
