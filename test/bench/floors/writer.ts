import type { Store, Transaction } from '@podwire/ipam/engine/store';

import { barePuts } from '../ipam/bare-transaction.js';

/** Etcd's limit; an allocation writes three records. */
const MAX_PUTS = 126;
const MAX_IN_FLIGHT = 2;

interface Waiting {
  readonly puts: Transaction['puts'];
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Writes the records of allocations, without a decision: waiting ones are committed together, two transactions at a time, as
 * podwire-ipam does it (`services/ipam/engine/updates/update-loop.ts`).
 */
export class Writer {
  readonly #store: Store;
  readonly #signal = new AbortController().signal;
  readonly #waiting: Waiting[] = [];
  #inFlight = 0;
  #isScheduled = false;
  #number = 0;

  constructor(store: Store) {
    this.#store = store;
  }

  /** Resolves once it is durable. */
  write(block: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ puts: barePuts(block, this.#number++), resolve, reject });
      this.#schedule();
    });
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      while (this.#inFlight < MAX_IN_FLIGHT && this.#waiting.length > 0) void this.#commit();
    });
  }

  async #commit(): Promise<void> {
    this.#inFlight++;
    const group = this.#waiting.splice(0, MAX_PUTS / 3);
    try {
      // One block of several is written once.
      const byKey = new Map(group.flatMap(({ puts }) => puts.map((put) => [put.key, put])));
      const puts = [...byKey.values()];
      await this.#store.commit({ comparisons: [], puts, deletes: [] }, this.#signal);
      for (const { resolve } of group) resolve();
    } catch (error) {
      for (const { reject } of group) reject(error);
    } finally {
      this.#inFlight--;
      this.#schedule();
    }
  }
}
