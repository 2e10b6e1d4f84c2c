import type { Failure } from '@podwire/shared/failure/failure';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import { formatNodeStep, stepKey, type NodeStep } from '../routes/step.js';

const REFUSED: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

/** How often something may be repaired at once before it is left for a while: somebody keeps undoing it. */
const REPAIRS_MAX = 5;

/** Something that stayed as wanted for so long is repaired at once again, in milliseconds. */
const FORGET_MS = 60_000;

/** Waiting ends in steps of this length, in milliseconds, so that many things that wait are tried together. */
const GRAIN_MS = 100;

interface Refused {
  readonly step: NodeStep;
  readonly failure: Failure;
  readonly errno: string;
}

interface Attempt {
  count: number;
  dueMs: number;
  refused: Refused | undefined;
  repairs: number;
  repairedMs: number;
}

/** Refusals of one kind: the same type of step, refused with the same errno. */
export interface Refusals {
  readonly type: NodeStep['type'];
  readonly errno: string;
  readonly count: number;
  /** One of them. */
  readonly example: string;
  readonly failure: Failure;
}

/** What was tried and refused, or repaired too often, by {@link stepKey}, and when it is tried again. */
export class Attempts {
  readonly #attempts = new Map<string, Attempt>();
  readonly #clock: Clock;
  readonly #random: () => number;

  constructor({ clock, random }: { readonly clock: Clock; readonly random: () => number }) {
    this.#clock = clock;
    this.#random = random;
  }

  /** Whether a step has to wait. */
  isHeld(step: NodeStep): boolean {
    if (this.#attempts.size === 0) return false;
    const attempt = this.#attempts.get(stepKey(step));
    return attempt !== undefined && attempt.dueMs > this.#clock.nowMs();
  }

  /** @returns whether it was the first refusal in a row */
  refused(step: NodeStep, refusal: { readonly failure: Failure; readonly errno: string }): boolean {
    const attempt = this.#at(stepKey(step));
    const isFirst = attempt.refused === undefined;
    attempt.refused = { step, ...refusal };
    this.#postpone(attempt);
    return isFirst;
  }

  /** Something was as wanted, and is not any more; it may have to wait before it is repaired. */
  drifted(step: NodeStep): void {
    const nowMs = this.#clock.nowMs();
    const attempt = this.#at(stepKey(step));
    const isForgotten = nowMs - attempt.repairedMs > FORGET_MS;
    if (isForgotten) attempt.count = 0;
    attempt.repairs = isForgotten ? 1 : attempt.repairs + 1;
    attempt.repairedMs = nowMs;
    if (attempt.repairs > REPAIRS_MAX) this.#postpone(attempt);
  }

  /** It is as wanted. */
  succeeded(key: string): void {
    const attempt = this.#attempts.get(key);
    if (!attempt) return;
    attempt.refused = undefined;
    attempt.dueMs = 0;
    if (this.#clock.nowMs() - attempt.repairedMs > FORGET_MS) this.#attempts.delete(key);
    else if (attempt.repairs <= REPAIRS_MAX) attempt.count = 0;
  }

  /** What is refused may be taken from here on: nothing waits any more. */
  release(): void {
    for (const attempt of this.#attempts.values()) if (attempt.refused) attempt.dueMs = 0;
  }

  /** Times that were noted are to come: nothing waits for them. */
  clockSetBack(nowMs: number): void {
    for (const attempt of this.#attempts.values()) {
      attempt.dueMs = Math.min(attempt.dueMs, nowMs);
      attempt.repairedMs = Math.min(attempt.repairedMs, nowMs);
    }
  }

  /** Forgets what is not among the keys of steps that are still to be made. */
  keep(keys: ReadonlySet<string>): void {
    for (const key of [...this.#attempts.keys()]) if (!keys.has(key)) this.succeeded(key);
  }

  /** When the next one is due; undefined when none waits. */
  nextDueMs(): number | undefined {
    let next: number | undefined;
    for (const { dueMs } of this.#attempts.values())
      if (dueMs > 0 && (next === undefined || dueMs < next)) next = dueMs;
    return next;
  }

  /** Keys of those that need wait no longer; each is given once. */
  takeDue(): string[] {
    const nowMs = this.#clock.nowMs();
    const due = [...this.#attempts.entries()].filter(([, { dueMs }]) => dueMs > 0 && dueMs <= nowMs);
    for (const [, attempt] of due) attempt.dueMs = 0;
    return due.map(([key]) => key);
  }

  /** What is refused at the moment, by kind. */
  refusals(): Refusals[] {
    const kinds = new Map<string, Refusals>();
    for (const { refused } of this.#attempts.values()) {
      if (!refused) continue;
      const { step, errno, failure } = refused;
      const kind = `${step.type} ${errno}`;
      const earlier = kinds.get(kind);
      kinds.set(kind, {
        type: step.type,
        errno,
        count: (earlier?.count ?? 0) + 1,
        example: earlier?.example ?? formatNodeStep(step),
        failure: earlier?.failure ?? failure,
      });
    }
    return [...kinds.values()];
  }

  #at(key: string): Attempt {
    const attempt = this.#attempts.get(key) ?? { count: 0, dueMs: 0, refused: undefined, repairs: 0, repairedMs: 0 };
    this.#attempts.set(key, attempt);
    return attempt;
  }

  #postpone(attempt: Attempt): void {
    const delayMs = backoffMs(attempt.count++, REFUSED, this.#random());
    attempt.dueMs = Math.ceil((this.#clock.nowMs() + delayMs + 1) / GRAIN_MS) * GRAIN_MS;
  }
}
