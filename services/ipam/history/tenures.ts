import { compareAddresses, type Address } from '@podwire/shared/net/address';

import { allocationOf } from '../addresses/addresses.js';
import { heldByHandle } from '../addresses/release.js';
import { allBlocks } from '../blocks/lookup.js';
import type { PodIdentity } from '../records/attributes.js';
import { heldAddressesIn, type HeldAddress } from '../records/block.js';
import { historyEntry, type HistoryEntry, type ObjectChange } from '../records/history.js';
import { isLease } from '../records/lease.js';
import type { View } from '../records/view.js';

/** The time for which an address has or had a holder. */
export interface Tenure extends Omit<HistoryEntry, 'releasedAtMs'> {
  /** Undefined while it is held. */
  readonly releasedAtMs: number | undefined;
}

/** The address, handle or owner whose tenures are requested. */
export type TenureSubject =
  | { readonly kind: 'address'; readonly address: Address }
  | { readonly kind: 'handle'; readonly handleId: string }
  | { readonly kind: 'pod'; readonly pod: Pick<PodIdentity, 'namespace' | 'name'> }
  /** All addresses whose attribute has the value. */
  | { readonly kind: 'node' | 'namespace'; readonly name: string };

/** Current tenures of the subject, in address order. For a pod, a node or a namespace, all allocations are examined. */
export function currentTenures(view: View, subject: TenureSubject): Tenure[] {
  return heldBySubject(view, subject)
    .map(currentTenure)
    .sort((a, b) => compareAddresses(a.address, b.address));
}

function heldBySubject(view: View, subject: TenureSubject): HeldAddress[] {
  switch (subject.kind) {
    case 'address': {
      const held = allocationOf(view, subject.address);
      return held ? [held] : [];
    }
    case 'handle':
      return heldByHandle(view, { handleId: subject.handleId, searchesAllBlocks: false });
    case 'pod':
    case 'node':
    case 'namespace':
      return [...allBlocks(view)].flatMap((block) =>
        heldAddressesIn(block, (attributes) => !isLease(attributes) && belongsToOwner(subject, attributes.owner)),
      );
  }
}

function currentTenure(held: HeldAddress): Tenure {
  return { ...historyEntry(held, 0), releasedAtMs: undefined };
}

function belongsToOwner(
  subject: Exclude<TenureSubject, { kind: 'address' | 'handle' }>,
  owner: HistoryEntry['owner'],
): boolean {
  if (subject.kind !== 'pod') return owner[subject.kind] === subject.name;
  return owner.pod === subject.pod.name && owner.namespace === subject.pod.namespace;
}

/** Whether a tenure belongs to the subject. */
export function belongsToSubject(subject: TenureSubject, { address, handleId, owner }: Tenure): boolean {
  switch (subject.kind) {
    case 'address':
      return compareAddresses(address, subject.address) === 0;
    case 'handle':
      return handleId === subject.handleId;
    case 'pod':
    case 'node':
    case 'namespace':
      return belongsToOwner(subject, owner);
  }
}

/** A span of time, in epoch milliseconds: from the first moment, before the second. */
export interface TimeSpan {
  readonly fromMs: number;
  readonly untilMs: number;
}

/** A request for a page of tenures. */
export interface TenureQuery {
  readonly subject: TenureSubject;
  readonly span: TimeSpan;
  readonly limit: number;
  /** End of the previous page; undefined for the first page. */
  readonly after: HistoryPosition | undefined;
}

/** The position between two pages. */
export type HistoryPosition =
  /** After this many current tenures. */
  | { readonly kind: 'present'; readonly count: number }
  /** At the start of a day. */
  | { readonly kind: 'day'; readonly day: number }
  /** Within a day of an address: after this release. */
  | {
      readonly kind: 'release';
      readonly day: number;
      readonly releasedAtMs: number;
      readonly sequenceNumber: bigint;
    }
  /** Within a day: after this key. */
  | { readonly kind: 'key'; readonly day: number; readonly key: string };

/** A request for a page of changes of objects, oldest first. */
export interface ChangeQuery {
  readonly span: TimeSpan;
  readonly selects: (change: ObjectChange) => boolean;
  /** How many requests are searched. */
  readonly limit: number;
  /** End of the previous page; undefined for the first page. */
  readonly after: string | undefined;
}

/** Digits of the time at the begin of a position. */
const TIME_DIGITS = 15;

/** The position before all changes of a moment. */
export function positionOf(timeMs: number): string {
  return String(Math.max(0, timeMs)).padStart(TIME_DIGITS, '0');
}

export function timeOf(position: string): number {
  return Number(position.slice(0, TIME_DIGITS));
}

/** Whether a tenure overlaps the span. One without an allocation time may have begun at any time. */
export function overlapsSpan({ allocatedAtMs, releasedAtMs }: Tenure, { fromMs, untilMs }: TimeSpan): boolean {
  return (releasedAtMs ?? Number.POSITIVE_INFINITY) > fromMs && (allocatedAtMs ?? Number.NEGATIVE_INFINITY) < untilMs;
}

/** Whether two tenures are of one allocation. */
export function isSameAllocation(a: Tenure, b: Tenure): boolean {
  return compareAddresses(a.address, b.address) === 0 && a.sequenceNumber === b.sequenceNumber;
}

/** Orders by the release, latest first; of one moment by the sequence number. */
export function compareTenures(a: Tenure, b: Tenure): number {
  const [aMs, bMs] = [a, b].map(({ releasedAtMs }) => releasedAtMs ?? Number.MAX_SAFE_INTEGER);
  if (aMs !== bMs) return (bMs ?? 0) - (aMs ?? 0);
  return a.sequenceNumber < b.sequenceNumber ? 1 : a.sequenceNumber > b.sequenceNumber ? -1 : 0;
}

/**
 * The holder of an address at a moment. An address has one holder at a time, so the first release after the moment is
 * that holder's, or a later holder's.
 * @param releases - of the address, in any order
 * @param present - the current holder
 */
export function holderAt(releases: readonly Tenure[], present: Tenure | undefined, atMs: number): Tenure | undefined {
  const [first] = releases
    .filter(({ releasedAtMs }) => releasedAtMs !== undefined && releasedAtMs > atMs)
    .sort((a, b) => -compareTenures(a, b));
  const holder = first ?? present;
  return holder && (holder.allocatedAtMs ?? Number.NEGATIVE_INFINITY) <= atMs ? holder : undefined;
}
