import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import type { Family } from '@podwire/shared/net/address';

import { NOTHING_STORED, type LeaseFile, type StoredLeases, type StoredSession } from './lease-file.js';
import { familyOf, type Lease } from './lease.js';

interface LeaseStockOptions {
  readonly file: LeaseFile;
  /** Tests whether anything of this node has an address: a record, an interface, a pending release. For one operation. */
  readonly occupancy: () => (address: string) => boolean;
  /** Time since the boot, in milliseconds, with the time in which the machine was suspended. */
  readonly bootMs: () => number;
}

/** A listing of podwire-ipam. */
interface Listing {
  readonly leases: readonly Lease[];
  /** End of validity by the clock of the boot. */
  readonly validUntilMs: number;
  readonly coolDownMs: number;
}

/**
 * The leases that no pod has. A pod never gets an address that anything of this node has: the comparison is by address, and no
 * sequence number makes an exception.
 *
 * The file has no lease that an ADD took: podwire-ipam may have bound it, and the record may be lost.
 */
export class LeaseStock {
  readonly #options: LeaseStockOptions;
  /** Available leases in the order of use. */
  #available: readonly Lease[] = [];
  /** Leases of ADDs without a wired pod, by address. */
  readonly #taken = new Map<string, Lease>();
  #stored: Omit<StoredLeases, 'leases'> = NOTHING_STORED;
  /** Whether the file has leases that were taken since. */
  #isOutdated = false;

  constructor(options: LeaseStockOptions) {
    this.#options = options;
  }

  /** Loads what the previous process left. Call once. @returns its session */
  load(): StoredSession | undefined {
    const { leases, ...stored } = this.#options.file.load();
    this.#available = leases;
    this.#stored = stored;
    return stored.session;
  }

  /** Removes the leases that pods got since the previous process saved the file. Call before the first one of them ends. */
  dropOccupied(): void {
    const isOccupied = this.#options.occupancy();
    this.#available = this.#available.filter(({ address }) => !isOccupied(address));
  }

  /** Time before an address of an ended pod may be used again, in milliseconds; infinite while it is unknown. */
  get coolDownMs(): number {
    return this.#stored.coolDownMs;
  }

  /** Whether podwire-ipam gives no lease of this node to another holder. */
  get isValid(): boolean {
    return this.#options.bootMs() < this.#stored.validUntilMs;
  }

  /** Number of addresses that pods can get. */
  count(family: Family): number {
    return this.isValid ? this.#free(family).length : 0;
  }

  /** Leases that are in podwire-ipam without an attachment: the available ones, and the leases of ADDs in progress. */
  unbound(): readonly Lease[] {
    return [...this.#available, ...this.#taken.values()];
  }

  isTaken(address: string): boolean {
    return this.#taken.has(address);
  }

  /** Whether an ADD or anything else of this node has the address. */
  isInUse(address: string): boolean {
    return this.#taken.has(address) || this.#options.occupancy()(address);
  }

  /** Number of leases of ADDs in progress. */
  takenCount(family: Family): number {
    return [...this.#taken.values()].filter((lease) => familyOf(lease) === family).length;
  }

  /** Takes one lease of each family, in that order; undefined if one family has none. */
  take(families: readonly Family[]): Lease[] | undefined {
    if (!this.isValid) return undefined;
    const isOccupied = this.#options.occupancy();
    const firstOf = (family: Family) =>
      this.#available.find((lease) => familyOf(lease) === family && !isOccupied(lease.address));
    const leases = families.flatMap((family) => firstOf(family) ?? []);
    if (leases.length < families.length) return undefined;
    this.#available = this.#available.filter((lease) => !leases.includes(lease));
    for (const lease of leases) this.#taken.set(lease.address, lease);
    this.#isOutdated = true;
    return leases;
  }

  /** Takes an address that an ended pod of this node had. */
  takeReused(lease: Lease): void {
    this.#taken.set(lease.address, lease);
  }

  /** Returns leases of a pod that was never wired. @param isOwn - whether the lease was available before */
  giveBack(leases: readonly AllocatedAddress[], isOwn: (lease: AllocatedAddress) => boolean): void {
    for (const { address } of leases) {
      const taken = this.#taken.get(address);
      this.#taken.delete(address);
      if (taken && isOwn(taken)) this.#available = [...this.#available, taken];
    }
  }

  /** A record has the addresses from now on. */
  recorded(addresses: readonly AllocatedAddress[]): void {
    for (const { address } of addresses) this.#taken.delete(address);
  }

  /** Replaces the leases of a family by a listing. */
  list(family: Family, { leases, validUntilMs, coolDownMs }: Listing): void {
    const isOccupied = this.#options.occupancy();
    const free = leases.filter(({ address }) => !this.#taken.has(address) && !isOccupied(address));
    this.#available = [...this.#available.filter((lease) => familyOf(lease) !== family), ...free];
    this.#stored = { ...this.#stored, validUntilMs, coolDownMs };
    this.#save();
  }

  /** Removes the leases of the family beyond the first ones, in order to return them. */
  withdraw(family: Family, keptCount: number): readonly Lease[] {
    const withdrawn = this.#available.filter((lease) => familyOf(lease) === family).slice(keptCount);
    if (withdrawn.length === 0) return withdrawn;
    this.#available = this.#available.filter((lease) => !withdrawn.includes(lease));
    this.#save();
    return withdrawn;
  }

  /** These are no leases of the node any more. @returns whether one was available */
  drop(leases: readonly AllocatedAddress[]): boolean {
    const isDropped = (lease: Lease) =>
      leases.some(
        ({ address, sequenceNumber }) => address === lease.address && sequenceNumber === lease.sequenceNumber,
      );
    if (!this.#available.some(isDropped)) return false;
    this.#available = this.#available.filter((lease) => !isDropped(lease));
    this.#save();
    return true;
  }

  /** The datastore went back: it may give these leases to other nodes. */
  dropAll(): void {
    this.#available = [];
    this.#save();
  }

  /** Another machine has the leases now. */
  clear(): void {
    this.#available = [];
    this.#stored = { ...NOTHING_STORED, session: this.#stored.session };
    this.#save();
  }

  noteSession(session: StoredSession): void {
    this.#stored = { ...this.#stored, session };
    this.#save();
  }

  /** Dead records of earlier processes whose return was never sent. */
  get ended(): StoredLeases['ended'] {
    return this.#stored.ended;
  }

  /** Stores which returns were never sent. */
  noteEnded(ended: StoredLeases['ended']): void {
    this.#stored = { ...this.#stored, ended };
    this.#save();
  }

  /** Removes taken leases from the file. Call before a record ends: until then the record proves that they are taken. */
  flush(): void {
    if (this.#isOutdated) this.#save();
  }

  #save(): void {
    this.#isOutdated = false;
    this.#options.file.save({ ...this.#stored, leases: this.#available });
  }

  #free(family: Family): Lease[] {
    const isOccupied = this.#options.occupancy();
    return this.#available.filter((lease) => familyOf(lease) === family && !isOccupied(lease.address));
  }
}
