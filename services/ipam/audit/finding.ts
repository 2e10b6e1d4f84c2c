import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { BlockOwner, Ordinal } from '../records/block.js';
import type { EndpointKey } from '../records/endpoint.js';
import type { Change } from '../records/view.js';

/** Every kind of finding with its severity. DESIGN.md describes the repair of each. */
export const FINDING_KINDS = {
  recordUnreadable: 'error',
  poolsOverlap: 'error',
  blocksOverlap: 'error',
  blockInvalid: 'error',
  blockWithoutPool: 'warning',
  blockOfOtherSize: 'warning',
  blockWithoutOwnerEmpty: 'warning',
  blockWithoutAffinity: 'warning',
  affinityUnconfirmed: 'warning',
  affinityWithoutBlock: 'warning',
  affinityOfOthersBlock: 'warning',
  blockOfGoneNode: 'warning',
  handleWithoutAddresses: 'warning',
  handleCountsWrong: 'warning',
  handleMissing: 'warning',
  allocationUnused: 'warning',
  allocationUnexplained: 'information',
  addressUnallocated: 'error',
  addressOutsidePools: 'information',
  addressOfSeveralOwners: 'error',
  endpointMissing: 'warning',
  endpointOutdated: 'warning',
  endpointOfGoneNode: 'warning',
  tunnelUnallocated: 'error',
  tunnelAllocationUnused: 'warning',
  coolDownOver: 'information',
  reservedInUse: 'information',
  leaseOfGoneNode: 'warning',
  leaseWithoutBoot: 'warning',
  addressConflict: 'error',
  nodeUnreported: 'warning',
  nodeInPool: 'warning',
} as const satisfies Record<string, Severity>;

export type FindingKind = keyof typeof FINDING_KINDS;

/**
 * Error: an address is or may be allocated twice, or a record is unreadable. Warning: something is held without
 * use, or two records disagree without effect on an address. Information: an allowed state.
 */
export type Severity = 'error' | 'warning' | 'information';

/** The faulty object, by which the finding can be rechecked. */
export type Subject =
  | { readonly type: 'pool'; readonly name: string }
  | { readonly type: 'block'; readonly prefix: Prefix }
  | { readonly type: 'address'; readonly block: Prefix; readonly ordinal: Ordinal }
  | { readonly type: 'affinity'; readonly owner: BlockOwner; readonly block: Prefix }
  /** `alsoIn`: blocks with its addresses that it does not name. */
  | { readonly type: 'handle'; readonly id: string; readonly alsoIn: readonly Prefix[] }
  | { readonly type: 'endpoint'; readonly key: EndpointKey }
  | { readonly type: 'node'; readonly name: string }
  | { readonly type: 'record'; readonly key: string };

/** A named object of the datastore that a finding concerns. */
interface FoundObject {
  readonly type: 'pool' | 'block' | 'address' | 'affinity' | 'handle' | 'endpoint' | 'node' | 'reservation' | 'record';
  readonly name: string;
}

/**
 * Remedy of a finding.
 *
 * Safe: depends on the records only. Whether or not the holders still run, no holder loses an address, and no held
 * address is allocated again. Release: releases addresses because no user is known. Correct only where endpoints are
 * accurate, so it is done only on request, and only after the allocation is old enough.
 */
export type Remedy =
  | { readonly type: 'none'; readonly reason: string }
  | { readonly type: 'safe'; readonly effect: string; readonly changes: () => readonly Change[] }
  | {
      readonly type: 'release';
      readonly effect: string;
      /** When the youngest of the allocations was made, in epoch milliseconds; undefined where none has a time. */
      readonly sinceMs: number | undefined;
      readonly changes: () => readonly Change[];
    };

export interface Finding {
  readonly kind: FindingKind;
  /** Identical for the same fault in every audit. */
  readonly id: string;
  readonly subject: Subject;
  readonly objects: readonly FoundObject[];
  /** The fault in one sentence. */
  readonly explanation: string;
  readonly remedy: Remedy;
}

interface FindingParts {
  readonly kind: FindingKind;
  readonly subject: Subject;
  /** The first is the object of the finding; it and the kind form the ID. */
  readonly objects: readonly [FoundObject, ...FoundObject[]];
  readonly explanation: string;
  readonly remedy: Remedy;
}

export function makeFinding(parts: FindingParts): Finding {
  const [first] = parts.objects;
  return { ...parts, id: `${parts.kind}/${first.type}/${first.name}` };
}

export function severityOf({ kind }: Pick<Finding, 'kind'>): Severity {
  return FINDING_KINDS[kind];
}

export function noRemedy(reason: string): Remedy {
  return { type: 'none', reason };
}

export function safeRemedy(effect: string, changes: () => readonly Change[]): Remedy {
  return { type: 'safe', effect, changes };
}

export function formatOwner({ kind, name }: BlockOwner): string {
  return kind === 'host' ? `node ${name}` : name;
}

export const objectOf = {
  pool: (name: string): FoundObject => ({ type: 'pool', name }),
  block: (prefix: Prefix): FoundObject => ({ type: 'block', name: formatPrefix(prefix) }),
  address: (address: Address): FoundObject => ({ type: 'address', name: formatAddress(address) }),
  affinity: (owner: BlockOwner, block: Prefix): FoundObject => ({
    type: 'affinity',
    name: `${owner.kind}:${owner.name}/${formatPrefix(block)}`,
  }),
  handle: (id: string): FoundObject => ({ type: 'handle', name: id }),
  endpoint: ({ namespace, name }: EndpointKey): FoundObject => ({ type: 'endpoint', name: `${namespace}/${name}` }),
  node: (name: string): FoundObject => ({ type: 'node', name }),
  reservation: (name: string): FoundObject => ({ type: 'reservation', name }),
  record: (key: string): FoundObject => ({ type: 'record', name: key }),
};
