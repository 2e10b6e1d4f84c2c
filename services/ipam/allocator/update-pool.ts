import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, prefixesOverlap } from '@podwire/shared/net/prefix';

import { poolUtilization } from '../blocks/utilization.js';
import { poolVersion, requirePool, requireVersion, type PoolListing } from '../pools/pools.js';
import { checkPool, LOAD_BALANCER, type PoolFault, type PoolRules } from '../pools/rules.js';
import type { Decision, View } from '../records/view.js';
import { poolText } from './pool-holders.js';
import type { Pool } from './records.js';

/** Reason of Calico's pool controller. */
const OVERLAP = 'CIDROverlap';

/** What is to become of a pool. What is left out stays as it is. */
export interface PoolChange extends Partial<PoolRules> {
  readonly name: string;
  /** Change only if the pool still is of this version; empty for any: the last writer wins. */
  readonly resourceVersion: string;
  readonly disabled?: boolean;
  /** Only to be told that it cannot be changed: has to be the pool's own. */
  readonly cidr?: string;
  /** Only to be told that it cannot be changed: has to be the pool's own. In bits. */
  readonly blockSizeBits?: number;
}

/** A changed pool, or every field at fault. */
export type PoolUpdate =
  | { readonly ok: true; readonly listing: PoolListing; readonly changed: boolean }
  | { readonly ok: false; readonly faults: readonly PoolFault[] };

/**
 * Changes a pool. Addresses in use stay valid whatever it says. Idempotent where no version is given.
 * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_BEING_DELETED
 */
export function updatePool(view: View, change: PoolChange): Decision<PoolUpdate> {
  const pool = requirePool(view, change.name);
  requireVersion(pool, change.resourceVersion);
  if (pool.deletionTimeMs !== undefined) {
    const text = `${poolText(pool)} is being deleted, which cannot be taken back; create a pool of another range`;
    throw new Failure('POOL_BEING_DELETED', text, { details: { pool: pool.name } });
  }
  const wanted = { ...pool, ...change, blockSizeBits: pool.blockSizeBits, cidr: formatPrefix(pool.prefix) };
  const checked = checkPool(wanted);
  const faults = [...immutableFaults(pool, change), ...useFaults(pool, wanted), ...(checked.ok ? [] : checked.faults)];
  if (faults.length > 0 || !checked.ok) return { changes: [], outcome: { ok: false, faults } };
  const value: Pool = { ...pool, ...checked.spec, notAllocatable: stillNotAllocatable(view.pools(), pool) };
  const changed = poolVersion(value) !== poolVersion(pool);
  return {
    changes: changed ? [{ type: 'put', record: { kind: 'pool', value } }] : [],
    outcome: { ok: true, changed, listing: { pool: value, utilization: poolUtilization(view, value) } },
  };
}

function immutableFaults(pool: Pool, { cidr, blockSizeBits }: PoolChange): PoolFault[] {
  const own = formatPrefix(pool.prefix);
  const cidrFault = { field: 'cidr', reason: `is immutable and ${own} here, not ${String(cidr)}` } as const;
  const sizeFault = {
    field: 'blockSizeBits',
    reason: `is immutable and ${pool.blockSizeBits} here, not ${String(blockSizeBits)}`,
  } as const;
  return [
    ...(cidr === undefined || cidr === own ? [] : [cidrFault]),
    ...(blockSizeBits === undefined || blockSizeBits === pool.blockSizeBits ? [] : [sizeFault]),
  ];
}

/** Services hold addresses of such a pool in ways that pods and tunnels do not. */
function useFaults(pool: Pool, { allowedUses }: Pick<Pool, 'allowedUses'>): PoolFault[] {
  if (!pool.allowedUses.includes(LOAD_BALANCER) || allowedUses.every((use) => use === LOAD_BALANCER)) return [];
  return [{ field: 'allowedUses', reason: `is ${LOAD_BALANCER} for good; create another pool for other uses` }];
}

/**
 * What Calico's pool controller found against a pool, without what holds no more. It takes its finding back once no pool overlaps;
 * here whoever changes the pool does.
 */
export function stillNotAllocatable(
  pools: readonly Pool[],
  pool: Pick<Pool, 'name' | 'prefix' | 'notAllocatable'>,
): string | undefined {
  const overlaps = pools.some(({ name, prefix }) => name !== pool.name && prefixesOverlap(prefix, pool.prefix));
  return pool.notAllocatable === OVERLAP && !overlaps ? undefined : pool.notAllocatable;
}
