import type { Family } from '@podwire/shared/net/address';

import type { BlockOwner, IpamConfig } from '../allocator/records.js';
import type { Labels } from '../allocator/selector/ast.js';

/** What addresses are used for; among a pool's `allowedUses`. */
export type PoolUse = 'Workload' | 'Tunnel' | 'LoadBalancer';

/** Addresses of one family that somebody wants, whoever it is. */
export interface Demand {
  readonly family: Family;
  readonly use: PoolUse;
  /** Whose blocks come first; blocks that are claimed become its. */
  readonly owner: BlockOwner;
  /** Empty for virtual owners. */
  readonly nodeLabels: Labels;
  /** Empty where no namespace is known. */
  readonly namespaceLabels: Labels;
  /** Whether pools may serve whatever their namespaceSelector says, as the namespace is left open. Default: false. */
  readonly isAnyNamespace?: boolean | undefined;
  /** Names or CIDRs of the pools to take from, in this order. Where none is of the family, selectors decide. */
  readonly pools: readonly string[];
  /** Blocks of the family that the owner may have in these pools; 0 for what the configuration says. */
  readonly maxBlocksCount: number;
  /** Where the walk over blocks of a single address starts: there is no place to keep together, and every taker has its own. */
  readonly seed: string;
  readonly nowMs: number;
}

/** What holds while none is stored, as with Calico. */
export const DEFAULT_CONFIG: IpamConfig = {
  strictAffinity: false,
  autoAllocateBlocks: true,
  maxBlocksPerHostCount: 0,
  cooldownSeconds: 0,
};

export function sameOwner(a: BlockOwner | undefined, b: BlockOwner): boolean {
  return a?.kind === b.kind && a.name === b.name;
}
