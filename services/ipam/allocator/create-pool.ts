import { Failure, type Violation } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { formatPrefix, parsePrefix, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';

import { wholeSeconds } from './block.js';
import { subdomainFault } from './names.js';
import { ALL, overlappingBlock, poolUtilization, WORKLOAD, type PoolListing } from './pools.js';
import type { Pool } from './records.js';
import type { Decision, View } from './view.js';

/** A pool as it is asked for, unchecked. */
export interface PoolWish {
  readonly name: string;
  readonly cidr: string;
  /** Prefix length of the pool's blocks in bits; 0 for the family's default. */
  readonly blockSizeBits: number;
  readonly disabled: boolean;
}

/** A pool's range and blocks, checked. */
export type PoolSpec = Pick<Pool, 'name' | 'prefix' | 'blockSizeBits' | 'disabled'>;

export type CheckedPool =
  | { readonly ok: true; readonly spec: PoolSpec }
  /** Every wrong field, by its name in {@link PoolWish}. */
  | { readonly ok: false; readonly faults: readonly PoolFault[] };

export interface PoolFault extends Violation {
  readonly field: 'name' | 'cidr' | 'blockSizeBits';
}

/** Limits of block sizes in bits, and the default (Calico's, for both families 64 addresses). */
const BLOCK_SIZES: Record<Family, { readonly min: number; readonly max: number; readonly usual: number }> = {
  4: { min: 20, max: 32, usual: 26 },
  6: { min: 116, max: 128, usual: 122 },
};

/** Ranges that every interface uses for itself: RFC 3927 and RFC 4291, section 2.5.6. */
const LINK_LOCAL = ['169.254.0.0/16', 'fe80::/10'];

/** Checks all of a pool's fields by the rules of Calico's API for IPPool. */
export function checkPool({ name, cidr, blockSizeBits, disabled }: PoolWish): CheckedPool {
  const faults: PoolFault[] = [];
  const nameFault = subdomainFault(name);
  if (nameFault !== undefined) faults.push({ field: 'name', reason: nameFault });
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) {
    const reason = parsed.fault === 'has host bits set' ? parsed.fault : `is ${parsed.fault}, such as 10.65.0.0/16`;
    return { ok: false, faults: [...faults, { field: 'cidr', reason }] };
  }
  const { prefix } = parsed;
  const { min, max, usual } = BLOCK_SIZES[prefix.family];
  const size = blockSizeBits === 0 ? usual : blockSizeBits;
  if (size < min || size > max)
    faults.push({
      field: 'blockSizeBits',
      reason: `is ${size}; it has to be from ${min} to ${max} for IPv${prefix.family}`,
    });
  else if (size < prefix.length)
    faults.push({
      field: 'cidr',
      reason: `is smaller than one block of /${size}; ask for a wider range or smaller blocks`,
    });
  const linkLocal = LINK_LOCAL.find((range) => overlaps(prefix, range));
  if (linkLocal !== undefined) faults.push({ field: 'cidr', reason: `overlaps the link-local range ${linkLocal}` });
  return faults.length > 0
    ? { ok: false, faults }
    : { ok: true, spec: { name, prefix, blockSizeBits: size, disabled } };
}

function overlaps(prefix: Prefix, range: string): boolean {
  const parsed = parsePrefix(range);
  return parsed.ok && prefixesOverlap(prefix, parsed.prefix);
}

export interface PoolCreation {
  readonly spec: PoolSpec;
  readonly uid: string;
  readonly nowMs: number;
}

/**
 * Makes a pool, for containers of all nodes and namespaces, provided that no other is made at the same time.
 * @throws Failure POOL_EXISTS, or POOL_OVERLAP when the range overlaps another pool's, or blocks of another size
 */
export function createPool(view: View, creation: PoolCreation): Decision<PoolListing> {
  const { spec } = creation;
  if (view.pool(spec.name)) {
    throw new Failure('POOL_EXISTS', `pool "${spec.name}" exists already; choose another name, or delete it first`, {
      details: { pool: spec.name },
    });
  }
  refuseOverlap(view, spec);
  const pool = makePool(creation);
  return {
    changes: [{ type: 'expectPools' }, { type: 'put', record: { kind: 'pool', value: pool } }],
    outcome: { pool, utilization: poolUtilization(view, pool) },
  };
}

/** The pool's record. */
export function makePool({ spec, uid, nowMs }: PoolCreation): Pool {
  return {
    ...spec,
    uid,
    createTimeMs: wholeSeconds(nowMs),
    deletionTimeMs: undefined,
    notAllocatable: undefined,
    ipipMode: 'Never',
    vxlanMode: 'Never',
    natOutgoing: false,
    disableBgpExport: false,
    nodeSelector: ALL,
    namespaceSelector: '',
    allowedUses: [WORKLOAD, 'Tunnel'],
    assignmentMode: 'Automatic',
  };
}

function refuseOverlap(view: View, { name, prefix, blockSizeBits }: PoolSpec): void {
  const subject = `pool "${name}" ${formatPrefix(prefix)}`;
  const other = view.pools().find((pool) => prefixesOverlap(pool.prefix, prefix));
  if (other) {
    const text = `${subject} overlaps pool "${other.name}" ${formatPrefix(other.prefix)}; choose another range`;
    throw new Failure('POOL_OVERLAP', text, { details: { pool: other.name } });
  }
  const block = blockOfOtherSize(view, prefix, blockSizeBits);
  if (block) {
    const text = `${subject} with blocks of /${blockSizeBits} overlaps the block ${formatPrefix(block)}, which a former pool left because addresses of it are in use; choose blocks of /${block.length} or another range`;
    throw new Failure('POOL_OVERLAP', text, { details: { block: formatPrefix(block) } });
  }
}

function blockOfOtherSize(view: View, prefix: Prefix, blockSizeBits: number): Prefix | undefined {
  for (const block of view.blocksIn(prefix)) if (block.prefix.length !== blockSizeBits) return block.prefix;
  const around = overlappingBlock(view, prefix)?.prefix;
  return around && around.length !== blockSizeBits ? around : undefined;
}
