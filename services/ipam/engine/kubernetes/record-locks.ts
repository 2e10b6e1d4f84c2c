import { untilAborted } from '@podwire/shared/failure/signal';

import type { Transaction } from '../store.js';

/** The keys that a transaction uses. */
interface UsedKeys {
  readonly written: ReadonlySet<string>;
  readonly compared: readonly string[];
  /** Prefixes under which no other transaction may write. */
  readonly prefixes: readonly string[];
}

interface QueuedTransaction {
  readonly keys: UsedKeys;
  readonly begin: () => void;
  hasBegun: boolean;
}

/**
 * Lets transactions run at the same time unless one writes a key that another one writes or compares. Transactions that share
 * keys run in the order of their arrival.
 */
export class RecordLocks {
  /** In the order of arrival. */
  readonly #turns = new Set<QueuedTransaction>();

  /**
   * Waits for the transactions before this one that share keys with it.
   * @returns a function that ends the turn
   * @throws Failure of the signal
   */
  async acquire(transaction: Transaction, signal: AbortSignal): Promise<() => void> {
    let begin = (): void => undefined;
    const begun = new Promise<void>((resolve) => (begin = resolve));
    const turn: QueuedTransaction = { keys: usedKeysOf(transaction), begin, hasBegun: false };
    this.#turns.add(turn);
    const end = (): void => {
      this.#turns.delete(turn);
      this.#beginNext();
    };
    this.#beginNext();
    try {
      await untilAborted(begun, signal);
    } catch (error) {
      end();
      throw error;
    }
    return end;
  }

  #beginNext(): void {
    const before: QueuedTransaction[] = [];
    for (const turn of this.#turns) {
      if (!turn.hasBegun && !before.some(({ keys }) => areInConflict(keys, turn.keys))) {
        turn.hasBegun = true;
        turn.begin();
      }
      before.push(turn);
    }
  }
}

function usedKeysOf({ comparisons, puts, deletes }: Transaction): UsedKeys {
  return {
    written: new Set([...puts.map(({ key }) => key), ...deletes]),
    compared: comparisons.flatMap((comparison) => (comparison.type === 'record' ? [comparison.key] : [])),
    prefixes: comparisons.flatMap((comparison) => (comparison.type === 'prefix' ? [comparison.prefix] : [])),
  };
}

function areInConflict(a: UsedKeys, b: UsedKeys): boolean {
  return isChangedBy(a, b.written) || isChangedBy(b, a.written);
}

function isChangedBy({ written, compared, prefixes }: UsedKeys, other: ReadonlySet<string>): boolean {
  if (compared.some((key) => other.has(key))) return true;
  for (const key of other) if (written.has(key) || prefixes.some((prefix) => key.startsWith(prefix))) return true;
  return false;
}
