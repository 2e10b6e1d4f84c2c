import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Events } from '../engine/events.js';
import { blockLane, nodeLane, POOLS_LANE, read, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';
import type { Page } from '../records/page.js';
import {
  continueAffinityClaim,
  continueAffinityRelease,
  listAffinities,
  type AffinityClaim,
  type AffinityListing,
  type AffinityQuery,
  type AffinityRelease,
  type AffinityScope,
  type RefusedClaim,
  type ReleasedAffinity,
} from './affinities.js';

/** The part of a request that the caller provides. */
type Requested<Request> = Omit<Request, 'nowMs' | 'unknownNodes' | 'after'>;

/** The result of claiming a range. */
interface ClaimedRange {
  readonly claimed: readonly Prefix[];
  readonly refused: readonly RefusedClaim[];
}

/** Reports released affinities after the commit. */
class AffinityEvents {
  readonly #log: Logger;

  constructor(events: Events) {
    this.#log = events.log;
  }

  /** Affinities were released, or their release was refused. */
  affinitiesReleased(released: readonly ReleasedAffinity[]): void {
    for (const { block, owner, result } of released) {
      const facts = { 'podwire.block': formatPrefix(block), 'podwire.node': owner.name };
      if (result === 'removed') this.#log.info(facts, `${owner.name} released the empty block ${formatPrefix(block)}`);
      if (result === 'disowned')
        this.#log.info(facts, `${owner.name} released block ${formatPrefix(block)}, whose addresses stay in use`);
    }
  }
}

/** Manages the owners of blocks. */
export class Affinities {
  readonly #options: IpamOptions;
  readonly #events: AffinityEvents;

  constructor(options: IpamOptions) {
    this.#options = options;
    this.#events = new AffinityEvents(options.events);
  }

  list(query: AffinityQuery, signal: AbortSignal): Promise<Page<AffinityListing>> {
    return read(this.#options, (view) => listAffinities(view, query), signal);
  }

  /**
   * Takes several transactions for a large range. Idempotent. @throws Failure CLAIM_REFUSED, NODE_NOT_FOUND,
   * NODE_BEING_DELETED
   */
  async claim(request: Requested<AffinityClaim>, signal: AbortSignal): Promise<ClaimedRange> {
    const { updates, events, clock } = this.#options;
    const claimed: Prefix[] = [];
    const refused: RefusedClaim[] = [];
    for (let after: Prefix | undefined; ;) {
      const claim = { after, nowMs: clock.nowMs(), unknownNodes: unknownNodes(this.#options), ...request };
      const lane = nodeLane(request.nodeName);
      const step = await updates.update(lane, (view) => continueAffinityClaim(view, claim), { signal });
      events.blocksClaimed(step.gained, request.nodeName);
      claimed.push(...step.claimed);
      refused.push(...step.refused);
      if (!step.next) return { claimed, refused };
      after = step.next;
    }
  }

  /** Takes several transactions for many affinities. Idempotent. @throws Failure POOL_NOT_FOUND, BLOCK_IN_USE */
  async release(request: Requested<AffinityRelease>, signal: AbortSignal): Promise<ReleasedAffinity[]> {
    const { updates, clock } = this.#options;
    const lane = await this.#laneOf(request.scope);
    const results: ReleasedAffinity[] = [];
    for (let after: AffinityRelease['after']; ;) {
      const release = { after, nowMs: clock.nowMs(), ...request };
      const step = await updates.update(lane, (view) => continueAffinityRelease(view, release), { signal });
      this.#events.affinitiesReleased(step.results);
      results.push(...step.results);
      if (!step.next) return results;
      after = step.next;
    }
  }

  async #laneOf(scope: AffinityScope): Promise<string> {
    switch (scope.kind) {
      case 'block':
        return this.#options.updates.peek((view) => blockLane(view.block(scope.block)));
      case 'range':
      case 'owner':
        return nodeLane(scope.owner.name);
      case 'pool':
        return POOLS_LANE;
    }
  }
}
