import type { Clock } from '@podwire/shared/runtime/clock';

import type { Condition } from './conditions.js';

/** Log interval of a reason whose messages keep changing, in milliseconds. */
const PAUSE_MS = 60_000;

/** Receives changes of the conditions. */
export interface ConditionEvents {
  conditionsChanged(reason: string, conditions: readonly Condition[]): void;
}

interface Told {
  readonly text: string;
  readonly atMs: number;
}

/** Tracks the current conditions, and logs one line for each change of a reason. */
export class ConditionTeller {
  readonly #clock: Clock;
  readonly #events: ConditionEvents;
  readonly #told = new Map<string, Told>();
  #conditions: readonly Condition[] = [];

  constructor({ clock, events }: { readonly clock: Clock; readonly events: ConditionEvents }) {
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
