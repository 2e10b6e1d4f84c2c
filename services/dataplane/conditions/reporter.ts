import type { Clock } from '@podwire/shared/runtime/clock';

import type { Condition } from './conditions.js';

/** Least time between two log lines of a reason whose messages keep changing, in milliseconds. */
const REPEAT_INTERVAL_MS = 60_000;

/** Receives changes of the conditions. */
export interface ConditionEvents {
  conditionsChanged(reason: string, conditions: readonly Condition[]): void;
}

interface Report {
  readonly text: string;
  readonly atMs: number;
}

/** Tracks the current conditions, and logs one line for each change of a reason. */
export class ConditionReporter {
  readonly #clock: Clock;
  readonly #events: ConditionEvents;
  readonly #reports = new Map<string, Report>();
  #conditions: readonly Condition[] = [];

  constructor({ clock, events }: { readonly clock: Clock; readonly events: ConditionEvents }) {
    this.#clock = clock;
    this.#events = events;
  }

  get conditions(): readonly Condition[] {
    return this.#conditions;
  }

  report(conditions: readonly Condition[]): void {
    this.#conditions = conditions;
    const byReason = new Map<string, Condition[]>();
    for (const condition of conditions) {
      byReason.set(condition.reason, [...(byReason.get(condition.reason) ?? []), condition]);
    }
    for (const [reason, all] of byReason) this.#reportReason(reason, all);
    for (const reason of this.#reports.keys()) {
      if (byReason.has(reason)) continue;
      this.#reports.delete(reason);
      this.#events.conditionsChanged(reason, []);
    }
  }

  #reportReason(reason: string, conditions: readonly Condition[]): void {
    const text = conditions.map(({ message }) => message).join('\n');
    const last = this.#reports.get(reason);
    const nowMs = this.#clock.monotonicMs();
    if (last && (last.text === text || nowMs - last.atMs < REPEAT_INTERVAL_MS)) return;
    this.#reports.set(reason, { text, atMs: nowMs });
    this.#events.conditionsChanged(reason, conditions);
  }
}
