import { failureOfSignal } from '@podwire/shared/failure/signal';
import { withSpan } from '@podwire/shared/runtime/span';

/** Lets one at a time work under a key, in the order in which they came. Different keys do not wait for each other. */
export class KeyedLock {
  /** A key that is held has an entry: those who wait for it, first come first. */
  readonly #waiting = new Map<string, (() => void)[]>();
  readonly #span: string | null;

  /** @param span - name of the span that the waiting is; null for none */
  constructor(span: string | null = 'podwire.dataplane.lock_wait') {
    this.#span = span;
  }

  /**
   * Runs `work` as the only one under the key.
   * @param signal - ends the waiting; once `work` runs, ending it is its own affair
   * @throws Failure the signal's, and whatever `work` throws
   */
  async run<Result>(key: string, signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    const acquire = (): Promise<void> => this.#acquire(key, signal);
    await (this.#span === null ? acquire() : withSpan(this.#span, {}, acquire));
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

  async #acquire(key: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) throw failureOfSignal(signal);
    const waiting = this.#waiting.get(key);
    if (!waiting) {
      this.#waiting.set(key, []);
      return;
    }
    await new Promise<void>((resolve, reject) => {
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

  #release(key: string): void {
    const next = this.#waiting.get(key)?.shift();
    if (next) next();
    else this.#waiting.delete(key);
  }
}
