import { failureOfSignal } from '@podwire/shared/failure/signal';
import { withSpan } from '@podwire/shared/runtime/span';

/** Lets one at a time work under a key, in the order in which they came. Different keys do not wait for each other. */
export class KeyedLock {
  /** A key that is held has an entry: those who wait for it, first come first. */
  readonly #waiting = new Map<string, (() => void)[]>();
  readonly #span: string | null;

  /** @param span - name of the span that the waiting is, where there is any; null for none */
  constructor(span: string | null = 'podwire.dataplane.lock_wait') {
    this.#span = span;
  }

  /**
   * Runs `work` as the only one under the key.
   * @param signal - ends the waiting; once `work` runs, ending it is its own affair
   * @throws Failure the signal's, and whatever `work` throws
   */
  async run<Result>(key: string, signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    if (signal.aborted) throw failureOfSignal(signal);
    const waiting = this.#waiting.get(key);
    if (waiting) await this.#traced(() => turnOf(waiting, signal));
    else this.#waiting.set(key, []);
    try {
      return await work();
    } finally {
      this.#release(key);
    }
  }

  isHeld(key: string): boolean {
    return this.#waiting.has(key);
  }

  /** Number of keys that are held. */
  get held(): number {
    return this.#waiting.size;
  }

  #traced(wait: () => Promise<void>): Promise<void> {
    return this.#span === null ? wait() : withSpan(this.#span, {}, wait);
  }

  #release(key: string): void {
    const next = this.#waiting.get(key)?.shift();
    if (next) next();
    else this.#waiting.delete(key);
  }
}

/** Resolves when it is the turn of this one, the last of those who wait so far. @throws Failure the signal's */
function turnOf(waiting: (() => void)[], signal: AbortSignal): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    const myTurn = () => {
      signal.removeEventListener('abort', giveUp);
      resolve();
    };
    const giveUp = () => {
      waiting.splice(waiting.indexOf(myTurn), 1);
      reject(failureOfSignal(signal));
    };
    waiting.push(myTurn);
    signal.addEventListener('abort', giveUp, { once: true });
  });
}
