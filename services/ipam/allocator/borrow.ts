import { sameOwner } from '../blocks/demand.js';
import { roomyBlocks } from '../blocks/pool-walk.js';
import { collect, expectRules, seedOf, type Offer, type Search } from '../blocks/search.js';
import type { Block } from './records.js';
import { hasRoom } from './reserved.js';

/**
 * What others' blocks, and blocks of nobody, have to give. They stay whose they are; routes to such an address lead to the
 * borrower by a route of its own. Blocks of a virtual owner serve load balancers alone.
 */
export function* borrowOffers(search: Search): Generator<Offer, void, void> {
  for (const pool of search.pools) {
    for (const stored of roomyBlocks(search.view, { pool, seed: seedOf(search, pool) })) {
      const block = collect(search, stored);
      if (isForeign(search, block) && hasRoom(block, search.reserved))
        yield { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
    }
  }
}

/** The owner's own were offered before, or are beyond what it may have. */
function isForeign({ demand }: Search, { owner }: Block): boolean {
  return !sameOwner(owner, demand.owner) && (owner?.kind !== 'virtual' || demand.use === 'LoadBalancer');
}
