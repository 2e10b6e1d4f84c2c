import type { Address } from '@podwire/shared/net/address';
import { prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { matches } from '../selectors/selector.js';
import { versionOf } from './versions.js';

/** A range of addresses that is cut into blocks of one size. */
export interface Pool {
  readonly name: string;
  readonly uid: string;
  readonly prefix: Prefix;
  /** Set by Calico's tools. Only rules of request policies read them. */
  readonly labels: Readonly<Record<string, string>>;
  /** Prefix length of the pool's blocks, in bits. */
  readonly blockSizeBits: number;
  /** Disabled by an operator. See `unavailableReason` for every reason why no address is allocated from a pool. */
  readonly disabled: boolean;
  /**
   * When its deletion began, in epoch milliseconds. From then on nothing is allocated, and the pool is removed with its
   * last block.
   */
  readonly deletionTimeMs: number | undefined;
  /** Why Calico's pool controller or podwire-ipam disables the pool (`CIDROverlap`); undefined when neither does. */
  readonly notAllocatable: string | undefined;
  /** Its condition `Allocatable`; undefined where it has none. Decides which of two overlapping pools serves. */
  readonly condition?: PoolCondition | undefined;
  readonly createTimeMs: number;
  readonly ipipMode: EncapsulationMode;
  readonly vxlanMode: EncapsulationMode;
  /** Whether traffic from pods to addresses outside all pools is translated to the node's address. */
  readonly natOutgoing: boolean;
  readonly disableBgpExport: boolean;
  /** Selector of the nodes that the pool serves, in Calico's selector language; empty for all. */
  readonly nodeSelector: string;
  /** Selector of the namespaces that the pool serves, in Calico's selector language; empty for all. */
  readonly namespaceSelector: string;
  /** Allowed uses of the pool's addresses; pods need `Workload`. */
  readonly allowedUses: readonly string[];
  /** A manual pool serves only requests that name it. */
  readonly assignmentMode: 'Automatic' | 'Manual';
}

export interface PoolCondition {
  readonly isAllocatable: boolean;
  /** Whether podwire-ipam wrote it. It then repeats a finding that podwire-ipam makes again from the current pools. */
  readonly isOwn: boolean;
}

/** An address of a service that the nodes have to reach, so that no pool may have it. */
export interface ServiceAddress {
  readonly name: 'podwire-ipam' | 'etcd' | 'the API server';
  readonly address: Address;
}

/** When packets to a pool's addresses on other nodes travel in a tunnel. */
export type EncapsulationMode = 'Never' | 'Always' | 'CrossSubnet';

/** Use of addresses by containers, among a pool's `allowedUses`. */
export const WORKLOAD = 'Workload';

/** Selector that matches everything. */
export const ALL = 'all()';

/** Why nothing can be allocated from a pool; undefined when it is available. Existing allocations stay valid. */
export function unavailableReason({ disabled, deletionTimeMs, notAllocatable }: Pool): string | undefined {
  if (deletionTimeMs !== undefined) return 'being deleted';
  if (disabled) return 'disabled';
  return notAllocatable === undefined ? undefined : `not allocatable: ${notAllocatable}`;
}

/** A pool's resource version, see {@link versionOf}. The condition follows from the rest. */
export function poolVersion(pool: Pool): string {
  return versionOf({ ...pool, condition: undefined });
}

/** The pool that a block lies in. */
export function poolOf(pools: readonly Pool[], block: Prefix): Pool | undefined {
  return pools.find(({ prefix }) => prefixContains(prefix, block));
}

/** Whether the pool's selector excludes nodes with these labels. An invalid selector does not. */
export function deselects({ nodeSelector }: Pool, labels: Readonly<Record<string, string>>): boolean {
  const { matches: isSelected, fault } = matches(nodeSelector, labels);
  return !isSelected && fault === undefined;
}
