import { Failure, type Violation } from '@podwire/shared/failure/failure';
import { familyBits } from '@podwire/shared/net/address';
import {
  comparePrefixes,
  formatPrefix,
  prefixContains,
  prefixesOverlap,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { overlappingRange } from '../blocks/lookup.js';
import { poolUtilization } from '../blocks/utilization.js';
import { corruptFailure, requirePool } from '../records/absence.js';
import { wholeSeconds } from '../records/block.js';
import { subdomainFault } from '../records/names.js';
import { poolVersion, type Pool, type ServiceAddress } from '../records/pool.js';
import type { Change, Decision, RecordValue, View } from '../records/view.js';
import { blockConflict, drainNote, hostConflict, OVERLAP, poolConflict } from './admission.js';
import { poolText, requireVersion, servesPods, type PoolListing } from './pools.js';
import { checkPool, LOAD_BALANCER, type PoolFault, type PoolRules, type PoolSpec } from './rules.js';

interface PoolCreation {
  readonly spec: PoolSpec;
  /** Addresses of podwire-ipam, its datastore and the API server. */
  readonly services?: readonly ServiceAddress[] | undefined;
  readonly uid: string;
  readonly nowMs: number;
}

/**
 * Creates a pool. The commit compares that no pool was created or changed meanwhile.
 * @throws Failure POOL_EXISTS, or POOL_OVERLAP when the range overlaps another pool's, blocks of another size, or hosts';
 * STORE_CORRUPT when a pool cannot be read, because it may overlap
 */
export function createPool(view: View, creation: PoolCreation): Decision<PoolListing> {
  const { spec } = creation;
  const existing = view.pool(spec.name);
  if (existing) {
    const text = `pool "${spec.name}" exists already${drainNote(existing)}; choose another name, or delete it first`;
    throw new Failure('POOL_EXISTS', text, { details: { pool: spec.name } });
  }
  // The range of an unreadable pool is unknown.
  for (const record of view.unreadable()) if (record.name.kind === 'pool') throw corruptFailure(record);
  refuse(poolConflict(spec, view.pools()) ?? blockConflict(view, spec));
  refuse(hostConflict(view.nodes(), spec, creation.services));
  const pool = makePool(creation);
  return {
    changes: [{ type: 'expectPools' }, { type: 'put', record: { kind: 'pool', value: pool } }],
    outcome: { pool, utilization: poolUtilization(view, pool) },
  };
}

function refuse(conflict: Failure | undefined): void {
  if (conflict) throw conflict;
}

/** The pool's record. */
export function makePool({ spec, uid, nowMs }: PoolCreation): Pool {
  const createTimeMs = wholeSeconds(nowMs);
  return { ...spec, labels: {}, uid, createTimeMs, deletionTimeMs: undefined, notAllocatable: undefined };
}

/**
 * Maximum number of parts of a split: the largest power of two whose records fit one etcd transaction of 128
 * operations.
 */
export const MAX_PARTS = 64;

/** Identifies a pool. */
export type PoolReference =
  { readonly by: 'name'; readonly name: string } | { readonly by: 'range'; readonly range: Prefix };

export interface PoolSplitRequest {
  readonly pool: PoolReference;
  /** A power of two from 2 to {@link MAX_PARTS}. */
  readonly partsCount: number;
  /** Split only if the pool still is of this version; empty for any. */
  readonly resourceVersion: string;
}

interface PoolSplitInput {
  readonly request: PoolSplitRequest;
  /** One for each part. */
  readonly uids: readonly string[];
  readonly nowMs: number;
}

/** The parts of a split pool, or every fault of the request. */
export type PoolSplit =
  | { readonly ok: true; readonly former: Pool; readonly parts: readonly PoolListing[] }
  | { readonly ok: false; readonly faults: readonly Violation[] };

/**
 * Replaces a pool by pools of equal size, in one transaction. Allocations compare the pool's record, so they commit
 * before or lose their comparison. Blocks do not name their pool, so nothing else changes. Not idempotent; finishes a split that
 * was interrupted.
 * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_BEING_DELETED; POOL_EXISTS when the name of a part is taken;
 * POOL_OVERLAP when a block overlaps two parts
 */
export function splitPool(view: View, { request, uids, nowMs }: PoolSplitInput): Decision<PoolSplit> {
  const { pool: reference, partsCount, resourceVersion } = request;
  const former = findPool(view, reference);
  requireVersion(former, resourceVersion);
  refuseDeletion(former);
  const faults = partFaults(former, partsCount);
  if (faults.length > 0) return { changes: [], outcome: { ok: false, faults } };
  const otherPools = view.pools().filter((pool) => pool.name !== former.name && !isPartOf(pool, former));
  const parts = partsOf(former.prefix, partsCount).map((prefix, index): Pool => {
    const name = partName(former, index);
    const part = {
      ...former,
      name,
      uid: uids[index] ?? '',
      prefix,
      createTimeMs: wholeSeconds(nowMs),
      notAllocatable: currentFinding(otherPools, { ...former, prefix }),
    };
    // A split that was interrupted has made it: other pools cannot overlap.
    const known = view.pool(name);
    return known && comparePrefixes(known.prefix, prefix) === 0 ? known : part;
  });
  const isNew = (part: Pool): boolean => view.pool(part.name) !== part;
  for (const part of parts.filter(isNew)) requirePartFree(view, former, part);
  const record: RecordValue = { kind: 'pool', value: former };
  const puts = parts
    .filter(isNew)
    .map((value): Change => ({ type: 'put', record: { kind: 'pool', value }, like: record }));
  return {
    changes: [{ type: 'expectPools' }, { type: 'delete', record }, ...puts],
    outcome: { ok: true, former, parts: parts.map((pool) => ({ pool, utilization: poolUtilization(view, pool) })) },
  };
}

function findPool(view: View, reference: PoolReference): Pool {
  if (reference.by === 'name') return requirePool(view, reference.name);
  const pool = view.pools().find(({ prefix }) => comparePrefixes(prefix, reference.range) === 0);
  if (pool) return pool;
  const text = `there is no pool ${formatPrefix(reference.range)}; list the pools for their ranges`;
  throw new Failure('POOL_NOT_FOUND', text, { details: { pool: formatPrefix(reference.range) } });
}

function refuseDeletion(pool: Pool): void {
  if (pool.deletionTimeMs === undefined) return;
  const text = `${poolText(pool)} is being deleted, which cannot be undone; it cannot be split`;
  throw new Failure('POOL_BEING_DELETED', text, { details: { pool: pool.name } });
}

/** Request faults that depend on the pool, by field of the API. */
function partFaults(pool: Pool, partsCount: number): Violation[] {
  const { prefix, blockSizeBits } = pool;
  const partBits = partLength(prefix, partsCount);
  const blocks = blockSizeBits < prefix.length ? 0n : 1n << BigInt(blockSizeBits - prefix.length);
  const sizeReason = `is ${partsCount}, and ${poolText(pool)} has room for ${formatCount(blocks, 'block')} of /${blockSizeBits}; each part needs at least one`;
  const lastName = partName(pool, partsCount - 1);
  const nameFault = subdomainFault(lastName);
  return [
    ...(partBits > blockSizeBits ? [{ field: 'number', reason: sizeReason }] : []),
    ...(nameFault === undefined
      ? []
      : [{ field: 'name', reason: `makes a part's name that ${nameFault}: ${lastName}` }]),
  ];
}

function requirePartFree(view: View, former: Pool, part: Pool): void {
  if (view.pool(part.name)) {
    const text = `${poolText(former)} cannot be split: there is a pool "${part.name}" already; delete that first`;
    throw new Failure('POOL_EXISTS', text, { details: { pool: part.name } });
  }
  const block = overlappingRange(view, part.prefix);
  if (!block || prefixContains(part.prefix, block)) return;
  const text = `${poolText(former)} cannot be split into parts of /${part.prefix.length}: block ${formatPrefix(block)} overlaps several; split into fewer parts, or release the addresses of the block`;
  throw new Failure('POOL_OVERLAP', text, { details: { block: formatPrefix(block) } });
}

/** Whether a pool is a part of another that was split. */
export function isPartOf({ name, prefix }: Pool, former: Pool): boolean {
  return name.startsWith(partStem(former)) && prefixContains(former.prefix, prefix);
}

function partName(pool: Pool, index: number): string {
  return `${partStem(pool)}${index}`;
}

function partStem({ name }: Pool): string {
  return `split-${name}-`;
}

function partLength({ length }: Prefix, partsCount: number): number {
  return length + Math.log2(partsCount);
}

function partsOf(prefix: Prefix, partsCount: number): Prefix[] {
  const length = partLength(prefix, partsCount);
  const size = 1n << BigInt(familyBits(prefix.family) - length);
  return Array.from({ length: partsCount }, (_, index) => ({
    family: prefix.family,
    value: prefix.value + BigInt(index) * size,
    length,
  }));
}

/** The changes of a pool. Omitted fields stay as they are. */
export interface PoolChange extends Partial<PoolRules> {
  readonly name: string;
  /** Change only if the pool still is of this version; empty for any: the last writer wins. */
  readonly resourceVersion: string;
  readonly disabled?: boolean;
  /** Must equal the pool's own value; it is present only so that a change can be refused. */
  readonly cidr?: string;
  /** Must equal the pool's own value; it is present only so that a change can be refused. In bits. */
  readonly blockSizeBits?: number;
  /** Addresses of podwire-ipam, its datastore and the API server. */
  readonly services?: readonly ServiceAddress[] | undefined;
}

/** A changed pool, or every faulty field. */
export type PoolUpdate =
  | { readonly ok: true; readonly listing: PoolListing; readonly changed: boolean }
  | { readonly ok: false; readonly faults: readonly PoolFault[] };

/**
 * Changes a pool. Addresses in use stay valid after any change. Idempotent without a version.
 * @throws Failure POOL_NOT_FOUND, STALE_VERSION, POOL_BEING_DELETED; POOL_OVERLAP when it gets to serve pods with hosts'
 * addresses
 */
export function updatePool(view: View, { services, ...change }: PoolChange): Decision<PoolUpdate> {
  const pool = requirePool(view, change.name);
  requireVersion(pool, change.resourceVersion);
  if (pool.deletionTimeMs !== undefined) {
    const text = `${poolText(pool)} is being deleted, which cannot be undone; create a pool of another range`;
    throw new Failure('POOL_BEING_DELETED', text, { details: { pool: pool.name } });
  }
  const requested = { ...pool, ...change, blockSizeBits: pool.blockSizeBits, cidr: formatPrefix(pool.prefix) };
  const checked = checkPool(requested);
  const faults = [
    ...immutableFaults(pool, change),
    ...changedUseFaults(pool, requested),
    ...(checked.ok ? [] : checked.faults),
  ];
  if (faults.length > 0 || !checked.ok) return { changes: [], outcome: { ok: false, faults } };
  if (!servesPods(pool)) refuse(hostConflict(view.nodes(), checked.spec, services));
  const value: Pool = { ...pool, ...checked.spec, notAllocatable: currentFinding(view.pools(), pool) };
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

/** Services hold addresses of a LoadBalancer pool, which must not be mixed with addresses of pods and tunnels. */
function changedUseFaults(pool: Pool, { allowedUses }: Pick<Pool, 'allowedUses'>): PoolFault[] {
  if (!pool.allowedUses.includes(LOAD_BALANCER) || allowedUses.every((use) => use === LOAD_BALANCER)) return [];
  return [{ field: 'allowedUses', reason: `is ${LOAD_BALANCER} permanently; create another pool for other uses` }];
}

/**
 * The findings of Calico's pool controller against a pool, without outdated ones. Calico's controller withdraws its
 * finding once no pool overlaps; here the change of the pool does.
 */
function currentFinding(
  pools: readonly Pool[],
  pool: Pick<Pool, 'name' | 'prefix' | 'notAllocatable'>,
): string | undefined {
  const overlaps = pools.some(({ name, prefix }) => name !== pool.name && prefixesOverlap(prefix, pool.prefix));
  return pool.notAllocatable === OVERLAP && !overlaps ? undefined : pool.notAllocatable;
}
