import { prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { versionOf } from './versions.js';

/** A range of addresses that is cut into blocks of one size. */
export interface Pool {
  readonly name: string;
  readonly uid: string;
  readonly prefix: Prefix;
  /** As Calico's tools set them; nothing but rules of request policies looks at them. */
  readonly labels: Readonly<Record<string, string>>;
  /** Prefix length of the pool's blocks, in bits. */
  readonly blockSizeBits: number;
  /** Switched off by its operator. See `outOfUse` for every reason for which a pool gives no address. */
  readonly disabled: boolean;
  /** When its deletion began, in epoch milliseconds: it gives no address any more, and goes with its last block. */
  readonly deletionTimeMs: number | undefined;
  /** Why Calico's pool controller disables the pool (`CIDROverlap`); undefined when it does not. */
  readonly notAllocatable: string | undefined;
  readonly createTimeMs: number;
  readonly ipipMode: EncapsulationMode;
  readonly vxlanMode: EncapsulationMode;
  /** Whether what pods send out of all pools leaves with the node's address. */
  readonly natOutgoing: boolean;
  readonly disableBgpExport: boolean;
  /** Which nodes the pool serves, in Calico's selector language; empty for all. */
  readonly nodeSelector: string;
  /** Which namespaces the pool serves, in Calico's selector language; empty for all. */
  readonly namespaceSelector: string;
  /** What the pool's addresses may be used for; pods need `Workload`. */
  readonly allowedUses: readonly string[];
  /** A manual pool serves only requests that name it. */
  readonly assignmentMode: 'Automatic' | 'Manual';
}

/** When packets to a pool's addresses on other nodes travel in a tunnel. */
export type EncapsulationMode = 'Never' | 'Always' | 'CrossSubnet';

/** Use of addresses by containers, among a pool's `allowedUses`. */
export const WORKLOAD = 'Workload';

/** Selector that matches everything. */
export const ALL = 'all()';

/** Why a pool gives no address to anybody, or undefined when it may. What was given from it stays valid. */
export function unavailableReason({ disabled, deletionTimeMs, notAllocatable }: Pool): string | undefined {
  if (deletionTimeMs !== undefined) return 'being deleted';
  if (disabled) return 'disabled';
  return notAllocatable === undefined ? undefined : `not allocatable: ${notAllocatable}`;
}

/** A pool's resource version, see {@link versionOf}. */
export function poolVersion(pool: Pool): string {
  return versionOf(pool);
}

/** The pool that a block lies in. */
export function poolOf(pools: readonly Pool[], block: Prefix): Pool | undefined {
  return pools.find(({ prefix }) => prefixContains(prefix, block));
}
