import { BLOCK_BYTES_PER_REQUEST, blockBytes, bytesOf, fitOneRequest } from '../allocator/block-bytes.js';
import { offers } from '../allocator/choose-block.js';
import { first } from '../allocator/gather.js';
import type { Block, Ordinal } from '../allocator/records.js';
import { firstGivable } from '../allocator/reserved.js';
import type { Offer, Search } from '../blocks/search.js';

/**
 * Where the addresses of one transaction come from. Each address writes its whole block, and etcd takes 1.5 MiB in one request, so
 * blocks of thousands of addresses may be too large for each other.
 */

/** An address to take, and the block to take it from. */
export interface Place {
  readonly offer: Offer;
  readonly ordinal: Ordinal;
}

/** The places that may serve one demand, best first; lazy, and from the best again each time that it is iterated. */
export type Places = Iterable<Place>;

/** Of so many blocks one is chosen that fits; a pool may have 2^64 that are all as large. */
const MAX_WEIGHED_BLOCKS = 64;

/** Of each block that has something to give the address that has been free for longest, the best block first. */
export function placesOf(search: Search): Places {
  return {
    *[Symbol.iterator](): Generator<Place, void, void> {
      for (const offer of offers(search)) {
        const ordinal = firstGivable(offer.block, search.reserved);
        if (ordinal !== undefined) yield { offer, ordinal };
      }
    },
  };
}

/**
 * A place for each demand: the best ones, as long as one request can write all their blocks. Where it cannot, blocks are passed over for
 * such as fit, the later demands' before the first's. Where none fit, the best are tried: etcd may take more than is known here.
 * @param demands - the places of each, which lie in different blocks
 * @param written - the blocks that the transaction writes besides
 * @returns in the order of the demands, undefined for one that has no place
 */
export function choosePlaces(demands: readonly Places[], written: readonly Block[] = []): (Place | undefined)[] {
  const best = demands.map(bestOf);
  const blocks = best.flatMap((place) => (place ? [place.offer.block] : []));
  if (blocks.length < demands.length || fitOneRequest([...written, ...blocks])) return best;
  return fitting(demands, BLOCK_BYTES_PER_REQUEST - bytesOf(written)) ?? best;
}

/** Without asking for a second one, which may be a walk over a pool away. */
function bestOf(places: Places): Place | undefined {
  for (const place of places) return place;
  return undefined;
}

/** The first places that leave enough for the smallest of each later demand; undefined when none do. */
function fitting([places, ...later]: readonly Places[], bytesLeft: number): Place[] | undefined {
  if (!places) return [];
  const laterBytes = later.reduce((sum, others) => sum + leastBytes(others), 0);
  for (const place of first(places, MAX_WEIGHED_BLOCKS)) {
    const bytes = blockBytes(place.offer.block);
    if (bytes + laterBytes > bytesLeft) continue;
    const rest = fitting(later, bytesLeft - bytes);
    return rest && [place, ...rest];
  }
  return undefined;
}

function leastBytes(places: Places): number {
  return Math.min(...first(places, MAX_WEIGHED_BLOCKS).map(({ offer }) => blockBytes(offer.block)));
}
