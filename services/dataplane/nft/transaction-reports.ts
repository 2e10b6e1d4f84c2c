interface TransactionReport {
  /** Monotonic time. */
  readonly atMs: number;
  readonly isDeleted: boolean;
}

/** Numbers of transactions, both ends included, of which one is an own one. */
interface OwnTransaction {
  readonly first: number;
  readonly last: number;
}

/**
 * Reported transactions of a table that are not known as own ones. The kernel reports own transactions too, in the order of
 * their numbers, and a report may arrive before the transaction's own result.
 */
export class TransactionReports {
  /** Own transactions that are not reported yet. */
  #own: readonly OwnTransaction[] = [];
  /** Reports by number. */
  readonly #reported = new Map<number | undefined, TransactionReport>();

  get hasForeign(): boolean {
    return this.#reported.size > 0;
  }

  /** @param transaction - undefined: some reports were lost */
  add(transaction: number | undefined, report: TransactionReport): void {
    if (transaction !== undefined) {
      const later = this.#own.filter(({ last }) => last >= transaction);
      const own = later.find(({ first }) => first <= transaction);
      this.#own = later.filter((each) => each !== own);
      if (own) return;
    }
    if (!this.#reported.has(transaction)) this.#reported.set(transaction, report);
  }

  /** @param first - the program nft does not say the number: then the lowest one that it can be */
  addOwn(last: number, first = last): void {
    const reported = [...this.#reported.keys()].find((each) => each !== undefined && each >= first && each <= last);
    if (reported === undefined) this.#own = [...this.#own, { first, last }];
    else this.#reported.delete(reported);
  }

  /**
   * Takes all reports.
   * @returns the time of the first one, whether the last one says that the table was deleted, and whether no report was taken but
   * some were lost
   */
  take(): { readonly changedAtMs: number | undefined; readonly isDeleted: boolean; readonly isLost: boolean } {
    const reports = [...this.#reported.values()];
    const isLost = this.#reported.has(undefined) && this.#reported.size === 1;
    this.#reported.clear();
    return { changedAtMs: reports[0]?.atMs, isDeleted: reports.at(-1)?.isDeleted === true, isLost };
  }
}
