import type { UpdateRequest } from './update-request.js';

/** Maximum time for which a lane commits separately after a lost transaction, in milliseconds. */
const EXCLUSIVE_MS = 500;
/** Transactions to be committed before the lane joins shared transactions again. */
const EXCLUSIVE_COMMITS = 2;

/** A queue of requests that are decided in order, with at most one transaction in flight. */
export class Lane {
  readonly name: string;
  /** Whether a transaction with requests of this lane is in flight. */
  isBusy = false;
  #queue: UpdateRequest[] = [];
  #pausesCount = 0;
  #isAfterLoss = false;
  #exclusiveCommits = 0;
  #exclusiveUntilMs = -Infinity;

  constructor(name: string) {
    this.name = name;
  }

  add(request: UpdateRequest): void {
    this.#queue.push(request);
  }

  /** Whether a request that is added now has to wait for earlier ones. */
  get isOccupied(): boolean {
    return this.isBusy || this.#queue.length > 0;
  }

  /** Whether it may be served now. */
  get isReady(): boolean {
    return !this.isBusy && this.#pausesCount === 0 && this.#queue.length > 0;
  }

  /** Whether no request waits or is in flight. */
  get isIdle(): boolean {
    return !this.isBusy && this.#pausesCount === 0 && this.#queue.length === 0;
  }

  /** Whether its requests are committed separately from other lanes, which would lose with them. */
  isExclusive(nowMs: number): boolean {
    return this.#exclusiveCommits > 0 && nowMs < this.#exclusiveUntilMs;
  }

  /** The first request whose caller waits. */
  first(): UpdateRequest | undefined {
    while (this.#queue[0]?.isAnswered) this.#queue.shift();
    return this.#queue[0];
  }

  takeFirst(): void {
    this.#queue.shift();
  }

  takeAll(): readonly UpdateRequest[] {
    return this.#queue.splice(0);
  }

  /** Puts returned requests at the front of the queue. */
  putBack(requests: readonly UpdateRequest[]): void {
    this.#queue.unshift(...requests.filter(({ isAnswered }) => !isAnswered));
  }

  /** Another replica has changed its records: it commits alone. */
  markLost(nowMs: number): void {
    this.#exclusiveUntilMs = nowMs + EXCLUSIVE_MS;
    this.#exclusiveCommits = EXCLUSIVE_COMMITS;
    this.#isAfterLoss = true;
  }

  /** A transaction of it was committed. @returns whether it is the first after one that was lost */
  markCommitted(): boolean {
    const isAfterLoss = this.#isAfterLoss;
    this.#isAfterLoss = false;
    this.#exclusiveCommits--;
    return isAfterLoss;
  }

  /** It is not served until {@link resume}. */
  pause(): void {
    this.#pausesCount++;
  }

  resume(): void {
    this.#pausesCount--;
  }
}
