import type { Family } from '@podwire/shared/net/address';

import type { AllocatedAddress } from '../records/record.js';
import {
  allocationKey,
  familyOf,
  type Lease,
  type LeaseListing,
  type ListedLease,
  type StoredLeases,
} from './lease.js';

/** Stores the leases that no pod has for the next process. Must not throw. */
export interface LeaseFile {
  /** @returns empty if there are none, or none that can be read */
  load(): StoredLeases;
  save(leases: StoredLeases): void;
}

/**
 * The leases of this node: which ones a pod may get.
 *
 * What makes this hard:
 * - A pod must never get an address that another pod has, or that was returned. A lease that was taken once is offered again only
 *   if its pod was never wired. A listing of podwire-ipam may be older than a binding or a return that followed it, and a call of
 *   a killed process may return a lease after the next process has started: it has to return that lease too, before its next
 *   listing.
 * - The process may be killed at any moment, and podwire-ipam may be down afterwards. The attachment's record is written before a
 *   pod gets its answer, and proves that a lease is taken; so the file changes only when less proves it: after a binding, when the
 *   pod is deleted, and before the end of a record.
 */
export class LeaseStock {
  readonly #file: LeaseFile;
  /** In the order of use. */
  #available: Lease[] = [];
  /** Taken, and not yet recorded by podwire-ipam for an attachment or returned. */
  readonly #taken = new Map<string, AllocatedAddress>();
  /** To be returned; a call may be under way. */
  #withdrawn: Lease[] = [];
  /** Settled since the listing in progress was requested; undefined: none is in progress. */
  #settledSince: Set<string> | undefined;

  constructor(file: LeaseFile) {
    this.#file = file;
  }

  /**
   * Loads the leases that the previous process left. Call once.
   * @param taken - the allocations of records that podwire-ipam may not know yet
   * @param occupied - addresses of interfaces in the kernel
   */
  load(taken: readonly AllocatedAddress[], occupied: ReadonlySet<string>): void {
    for (const allocation of taken) this.#taken.set(allocationKey(allocation), allocation);
    const isFree = (lease: Lease) => !this.#taken.has(allocationKey(lease)) && !occupied.has(lease.address);
    const { leases, withdrawn } = this.#file.load();
    this.#withdrawn = withdrawn.filter(isFree);
    this.#available = leases.filter(isFree);
  }

  /** Number of addresses that pods can get. */
  count(family: Family): number {
    return this.#available.reduce((sum, lease) => sum + (familyOf(lease) === family ? 1 : 0), 0);
  }

  /** Number of taken leases that podwire-ipam has not recorded yet. */
  takenCount(family: Family): number {
    return [...this.#taken.values()].filter((lease) => familyOf(lease) === family).length;
  }

  /** Takes one lease of each family, in that order; undefined if one family has none. */
  take(families: readonly Family[]): Lease[] | undefined {
    const leases = families.flatMap((family) => this.#available.find((lease) => familyOf(lease) === family) ?? []);
    if (leases.length < families.length) return undefined;
    this.#available = this.#available.filter((lease) => !leases.includes(lease));
    for (const lease of leases) this.#taken.set(allocationKey(lease), lease);
    return leases;
  }

  /** Returns leases of a pod that was never wired. */
  giveBack(leases: readonly Lease[]): void {
    for (const lease of leases) if (this.#taken.delete(allocationKey(lease))) this.#available.push(lease);
  }

  /** Withdraws the leases of the family beyond the first ones, in order to return them to podwire-ipam. */
  withdraw(family: Family, keptCount: number): void {
    const ofFamily = this.#available.filter((lease) => familyOf(lease) === family);
    const withdrawn = ofFamily.slice(keptCount);
    if (withdrawn.length === 0) return;
    this.#available = this.#available.filter((lease) => !withdrawn.includes(lease));
    this.#withdrawn.push(...withdrawn);
    this.#save();
  }

  /** Leases of the family that are to be returned before the next listing, which would offer them again. */
  withdrawn(family: Family): readonly Lease[] {
    return this.#withdrawn.filter((lease) => familyOf(lease) === family);
  }

  /** podwire-ipam has freed withdrawn leases. */
  returned(leases: readonly Lease[]): void {
    this.#withdrawn = this.#withdrawn.filter((lease) => !leases.includes(lease));
    this.#save();
  }

  /** The pod of these allocations is deleted. Only its record proves now that they are taken, and someone may remove it. */
  unwired(allocations: readonly AllocatedAddress[]): void {
    if (allocations.some((allocation) => this.#taken.has(allocationKey(allocation)))) this.#save();
  }

  /** The allocations are recorded by podwire-ipam, or returned. Call before the record says so. */
  settled(allocations: readonly AllocatedAddress[]): void {
    const known = allocations.filter((allocation) => this.#taken.delete(allocationKey(allocation)));
    for (const allocation of known) this.#settledSince?.add(allocationKey(allocation));
    if (known.length > 0) this.#save();
  }

  /** Call before a listing is requested; one at a time. */
  beginListing(): void {
    this.#settledSince = new Set();
  }

  /**
   * Takes over a listing: leases that podwire-ipam does not list are not offered any more, new ones are. Outdated ones are
   * withdrawn.
   * @param occupied - addresses of interfaces in the kernel without a record
   */
  takeListing(family: Family, { leases }: LeaseListing, occupied: ReadonlySet<string>): void {
    const settled = this.#settledSince ?? new Set();
    this.#settledSince = undefined;
    const isFree = (lease: ListedLease) =>
      !settled.has(allocationKey(lease)) && !this.#taken.has(allocationKey(lease)) && !occupied.has(lease.address);
    const free = leases.filter(isFree);
    const current = free.filter(({ isOutdated }) => !isOutdated).map(withoutMark);
    this.#available = [...this.#available.filter((lease) => familyOf(lease) !== family), ...current];
    this.#withdrawn.push(...free.filter(({ isOutdated }) => isOutdated).map(withoutMark));
    this.#save();
  }

  #save(): void {
    // Not the taken ones, which podwire-ipam may have bound.
    this.#file.save({ leases: this.#available, withdrawn: this.#withdrawn });
  }
}

function withoutMark({ address, sequenceNumber, poolName }: ListedLease): Lease {
  return { address, sequenceNumber, poolName };
}
