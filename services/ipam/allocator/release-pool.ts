import type { HeldAddress } from '../blocks/holding.js';
import { giveBack, heldIn, nextBatch } from '../blocks/release-changes.js';
import type { Decision, View } from '../records/view.js';
import type { Pool } from './records.js';
import { releaseStep, type ReleaseStep } from './release-node.js';

export interface PoolRelease {
  readonly poolName: string;
  readonly nowMs: number;
}

/**
 * Gives back every address of a pool, whoever holds it, as much in each step as a transaction takes. Blocks that become empty stay
 * with their owners, unless the pool is being deleted.
 *
 * Idempotent; a pool that is not there has no addresses. It comes to an end once nobody takes addresses of the pool any more.
 */
export function continuePoolRelease(view: View, { poolName, nowMs }: PoolRelease): Decision<ReleaseStep> {
  const pool = view.pool(poolName);
  const batch = pool ? nextBatch(view, heldOf(view, pool)) : [];
  return releaseStep(batch, giveBack(view, batch, nowMs));
}

function* heldOf(view: View, { prefix }: Pool): Generator<HeldAddress, void, void> {
  for (const block of view.blocksIn(prefix)) yield* heldIn(block, () => true);
}
