import type { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter, histogram, observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { Condition } from '../conditions/conditions.js';
import type { NodeStatus } from './status.js';
import { formatNodeStep, type NodeObject } from './step.js';
import type { NodeSysctl } from './wanted.js';

/** Result of a full check. */
type CheckResult = 'clean' | 'drift' | 'failed';

const MS_PER_SECOND = 1000;

/** Most messages in one log line; the rest is counted. */
const MESSAGES_LOGGED_COUNT = 20;

/** Reports what happened to the node's kernel: a counter and, for changes of state, a log line. */
export class ReconcileEvents {
  readonly #log: Logger;
  readonly #drift = counter('podwire.dataplane.node.drift');
  readonly #checks = counter('podwire.dataplane.node.checks');
  readonly #checkTime = histogram('podwire.dataplane.node.check.duration');

  constructor(log: Logger) {
    this.#log = log;
  }

  applied(counts: { readonly done: number; readonly refused: number }): void {
    this.#log.debug(counts, 'the node’s kernel was changed');
  }

  /** Another program changed Podwire's state; the repair has begun. */
  drifted(counts: ReadonlyMap<NodeObject, number>, example: string): void {
    for (const [object, count] of counts) this.#drift.add(count, { object });
    const list = [...counts].map(([object, count]) => `${object}: ${count}`).join(', ');
    this.#log.warn(
      { drift: Object.fromEntries(counts) },
      `another program changed the node’s kernel (${list}); repairing: ${example}`,
    );
  }

  checked(result: CheckResult, durationMs: number): void {
    this.#checks.add(1, { result });
    this.#checkTime.record(durationMs / MS_PER_SECOND);
  }

  overrun(): void {
    this.#log.info('kernel notifications lost; reading the kernel in full');
  }

  /** The faults of a reason changed; an empty list means resolved. */
  conditionsChanged(reason: string, conditions: readonly Condition[]): void {
    const [first] = conditions;
    if (!first) {
      this.#log.info({ reason }, `condition resolved: ${reason}`);
      return;
    }
    const messages = conditions.slice(0, MESSAGES_LOGGED_COUNT).map(({ message }) => message);
    this.#log.warn({ reason, messages, count: conditions.length }, first.message);
  }

  /** Settings for pods were applied for the first time. */
  settingsApplied(settings: readonly NodeSysctl[]): void {
    this.#log.info(`settings for pods applied: ${commandsOf(settings)}`);
  }

  /** Settings for pods were changed by another program, and are restored. */
  settingsRepaired(settings: readonly NodeSysctl[]): void {
    this.#log.warn(`settings for pods repaired after another program changed them: ${commandsOf(settings)}`);
  }

  /** A defect interrupted a round; the next one reads the kernel in full. */
  roundFailed(error: unknown): void {
    this.#log.error({ err: error }, 'reconciliation of the node’s kernel failed; retrying');
  }

  /** The kernel cannot be read, or the watch failed. Called once until a round succeeds. */
  kernelUnreadable(failure: Failure): void {
    this.#log.error({ err: failure }, 'the node’s kernel cannot be read; its state stays unchanged, retrying');
  }

  kernelReadable(): void {
    this.#log.info('the node’s kernel is readable again');
  }
}

function commandsOf(settings: readonly NodeSysctl[]): string {
  return settings.map((setting) => formatNodeStep({ type: 'sysctl-write', ...setting })).join(', ');
}

/**
 * A gauge of the routes that the cluster requires and that the kernel has.
 * @param status - undefined where the node is in no cluster
 * @returns a function that removes it
 */
export function observeRoutes(status: () => NodeStatus | undefined): () => void {
  return observeMetrics(['podwire.dataplane.routes'], (observe) => {
    const { wanted, present } = status() ?? {};
    if (wanted) observe('podwire.dataplane.routes', wanted.routes, { state: 'wanted' });
    if (present) observe('podwire.dataplane.routes', present.routes, { state: 'present' });
  });
}
