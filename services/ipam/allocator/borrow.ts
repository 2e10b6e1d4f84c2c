import { existingBlocks } from './claim.js';
import { sameOwner } from './demand.js';
import type { Block, Pool } from './records.js';
import { hasRoom } from './reserved.js';
import { collect, expectRules, seedOf, type Offer, type Search } from './search.js';

/**
 * What others' blocks, and blocks of nobody, have to give. They stay whose they are; routes to such an address lead to the
 * borrower by a route of its own. Blocks of a virtual owner serve load balancers alone.
 */
export function* borrowOffers(search: Search): Generator<Offer, void, void> {
  for (const pool of search.pools) {
    for (const block of roomyBlocks(search, pool)) {
      if (isForeign(search, block)) yield { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
    }
  }
}

/** The blocks of a pool that have an address to give, from the start that the owner's name decides. */
function* roomyBlocks(search: Search, pool: Pool): Generator<Block, void, void> {
  for (const stored of existingBlocks(search.view, { pool, seed: seedOf(search, pool) })) {
    const block = collect(search, stored);
    if (hasRoom(block, search.reserved)) yield block;
  }
}

/** The owner's own were offered before, or are beyond what it may have. */
function isForeign({ demand }: Search, { owner }: Block): boolean {
  return !sameOwner(owner, demand.owner) && (owner?.kind !== 'virtual' || demand.use === 'LoadBalancer');
}
