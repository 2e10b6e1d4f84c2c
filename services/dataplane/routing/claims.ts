import { compareTexts } from '@podwire/shared/words/order';

import { RANKS, type Claim } from '../routes/block-routes.js';

interface Entry {
  /** CIDR of the block that claims. */
  readonly block: string;
  readonly claim: Claim;
}

/** Every block's claims, by destination. One destination is claimed more than once only where blocks overlap. */
export class Claims {
  readonly #byDestination = new Map<string, readonly Entry[]>();

  add(block: string, claim: Claim): void {
    const others = this.#byDestination.get(claim.destination) ?? [];
    this.#byDestination.set(claim.destination, [...others, { block, claim }]);
  }

  /** Takes back one {@link add} of the same claim. */
  remove(block: string, claim: Claim): void {
    const left = (this.#byDestination.get(claim.destination) ?? []).filter(
      (entry) => entry.block !== block || entry.claim !== claim,
    );
    if (left.length === 0) this.#byDestination.delete(claim.destination);
    else this.#byDestination.set(claim.destination, left);
  }

  /** The claim that counts: of the best rank; among equals that of the block whose CIDR comes first as text. */
  best(destination: string): Claim | undefined {
    const [first, ...others] = this.#byDestination.get(destination) ?? [];
    return others.reduce((best, entry) => (isBetter(entry, best) ? entry : best), first)?.claim;
  }
}

function isBetter(a: Entry, b: Entry | undefined): boolean {
  if (!b) return true;
  const ranks = RANKS.indexOf(a.claim.rank) - RANKS.indexOf(b.claim.rank);
  return ranks < 0 || (ranks === 0 && compareTexts(a.block, b.block) < 0);
}
