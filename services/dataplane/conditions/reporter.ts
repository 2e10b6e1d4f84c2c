import type { Clock } from '@podwire/shared/runtime/clock';

import type { ReconcileEvents } from '../routes/events.js';
import type { Condition } from '../routes/wanted.js';

/** A reason whose messages change all the time is logged this often, in milliseconds. */
const PAUSE_MS = 60_000;

interface Told {
  readonly text: string;
  readonly atMs: number;
}

/** Knows the conditions that hold, and has a line logged for each change of what is to be told of a reason. */
export class ConditionTeller {
  readonly #clock: Clock;
  readonly #events: Pick<ReconcileEvents, 'conditionsChanged'>;
  readonly #told = new Map<string, Told>();
  #conditions: readonly Condition[] = [];

  constructor({
    clock,
    events,
  }: {
    readonly clock: Clock;
    readonly events: Pick<ReconcileEvents, 'conditionsChanged'>;
  }) {
    this.#clock = clock;
    this.#events = events;
  }

  get conditions(): readonly Condition[] {
    return this.#conditions;
  }

  tell(conditions: readonly Condition[]): void {
    this.#conditions = conditions;
    const byReason = new Map<string, Condition[]>();
    for (const condition of conditions) {
      byReason.set(condition.reason, [...(byReason.get(condition.reason) ?? []), condition]);
    }
    for (const [reason, all] of byReason) this.#tellOf(reason, all);
    for (const reason of this.#told.keys()) {
      if (byReason.has(reason)) continue;
      this.#told.delete(reason);
      this.#events.conditionsChanged(reason, []);
    }
  }

  #tellOf(reason: string, conditions: readonly Condition[]): void {
    const text = conditions.map(({ message }) => message).join('\n');
    const told = this.#told.get(reason);
    const nowMs = this.#clock.nowMs();
    if (told && (told.text === text || nowMs - told.atMs < PAUSE_MS)) return;
    this.#told.set(reason, { text, atMs: nowMs });
    this.#events.conditionsChanged(reason, conditions);
  }
}
