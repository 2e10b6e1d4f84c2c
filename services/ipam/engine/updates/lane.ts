import type { Request } from './update-request.js';

/** How long a lane goes alone at most after one of its transactions was lost, in milliseconds. */
const ALONE_MS = 500;
/** Transactions to be committed before the lane joins shared transactions again. */
const ALONE_WINS = 2;

/** Requests that are decided in the order in which they came, and of which one transaction at most is under way. */
export class Lane {
  readonly name: string;
  /** Whether a transaction with requests of this lane is under way. */
  isBusy = false;
  #queue: Request[] = [];
  #waits = 0;
  #hasLost = false;
  #aloneWins = 0;
  #aloneUntilMs = -Infinity;

  constructor(name: string) {
    this.name = name;
  }

  add(request: Request): void {
    this.#queue.push(request);
  }

  /** Whether a request that is added now has to wait for earlier ones. */
  get isOccupied(): boolean {
    return this.isBusy || this.#queue.length > 0;
  }

  /** Whether it may be served now. */
  get isReady(): boolean {
    return !this.isBusy && this.#waits === 0 && this.#queue.length > 0;
  }

  /** Whether there is nothing to serve. */
  get isIdle(): boolean {
    return !this.isBusy && this.#waits === 0 && this.#queue.length === 0;
  }

  /** Whether its requests are committed separately from other lanes, which would lose with them. */
  isAlone(nowMs: number): boolean {
    return this.#aloneWins > 0 && nowMs < this.#aloneUntilMs;
  }

  /** The first request whose caller waits. */
  first(): Request | undefined {
    while (this.#queue[0]?.isAnswered) this.#queue.shift();
    return this.#queue[0];
  }

  takeFirst(): void {
    this.#queue.shift();
  }

  takeAll(): readonly Request[] {
    return this.#queue.splice(0);
  }

  /** Puts returned requests at the front of the queue. */
  putBack(requests: readonly Request[]): void {
    this.#queue.unshift(...requests.filter(({ isAnswered }) => !isAnswered));
  }

  /** Another replica has changed its records: it commits alone. */
  lost(nowMs: number): void {
    this.#aloneUntilMs = nowMs + ALONE_MS;
    this.#aloneWins = ALONE_WINS;
    this.#hasLost = true;
  }

  /** A transaction of it was committed. @returns whether it is the first after one that was lost */
  won(): boolean {
    const hasLost = this.#hasLost;
    this.#hasLost = false;
    this.#aloneWins--;
    return hasLost;
  }

  /** It is not served until {@link resume}. */
  pause(): void {
    this.#waits++;
  }

  resume(): void {
    this.#waits--;
  }
}
