import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Finding } from './inspect.js';

/** Reports changes that other programs make to an installation. */
export interface ReconcileEvents {
  /** A file is about to be restored. */
  repairing(finding: Finding): void;
  /** A different file of Podwire is kept: another release or an operator may have written it. Once for each state. */
  kept(finding: Finding): void;
  /** Repairs are suspended, as another program keeps changing the files. Once per suspension. */
  suspended(finding: Finding): void;
  /** A new warning about foreign files. Once as long as it persists. */
  warned(text: string): void;
  /** A check or a repair failed; it is retried. */
  failed(error: unknown): void;
}

export interface ReconcileOptions {
  readonly inspect: () => Promise<readonly Finding[]>;
  /** Warnings about foreign files. */
  readonly warnings: () => Promise<readonly string[]>;
  /** Restores the damaged files only. */
  readonly repair: (damage: readonly Finding[]) => Promise<unknown>;
  readonly events: ReconcileEvents;
  readonly clock: Clock;
  readonly intervalMs: number;
  readonly limits: RepairLimits;
  /** Stops the reconciler. */
  readonly signal: AbortSignal;
}

/** Limits of the shipped program: damage is rare, and two installers must not overwrite each other endlessly. */
export const REPAIR_LIMITS: RepairLimits = { count: 5, windowMs: 600_000 };

/**
 * Checks an installation periodically and restores missing, broken or foreign files until the signal fires. A different
 * file that is Podwire's is kept: another release may have written it.
 */
export function reconcileInstallation(options: ReconcileOptions): Promise<void> {
  const { clock, intervalMs, signal, events } = options;
  const reconciler = new Reconciler(options);
  const queue = new WorkQueue<'check'>({
    reconcile: async () => {
      await reconciler.reconcile();
      return { inMs: intervalMs };
    },
    retryInMs: () => intervalMs,
    onFailure: (error) => events.failed(error),
    clock,
  });
  queue.request('check');
  return new Promise((resolve) => {
    const stop = (): void => resolve(queue.stop());
    if (signal.aborted) stop();
    else signal.addEventListener('abort', stop);
  });
}

class Reconciler {
  readonly #options: ReconcileOptions;
  readonly #limiter: RepairLimiter;
  /** Last reported text of each kept file, by path. */
  readonly #reported = new Map<string, string>();
  #isFirstCheck = true;
  /** Warnings of the last check. */
  #warnings: readonly string[] = [];
  #isSuspended = false;

  constructor(options: ReconcileOptions) {
    this.#options = options;
    this.#limiter = new RepairLimiter(options.limits);
  }

  async reconcile(): Promise<void> {
    const { inspect, warnings, events } = this.#options;
    if (this.#isFirstCheck) {
      this.#isFirstCheck = false;
      // The install step has just written the files and logged these warnings.
      this.#warnings = await warnings();
      return;
    }
    const findings = await inspect();
    const damage = findings.filter(({ difference }) => difference !== 'different');
    this.#reportKept(findings.filter(({ difference }) => difference === 'different'));
    if (damage.length > 0) await this.#repair(damage);
    const previous = this.#warnings;
    this.#warnings = await warnings();
    for (const text of this.#warnings) if (!previous.includes(text)) events.warned(text);
  }

  async #repair(damage: readonly Finding[]): Promise<void> {
    const { repair, events, clock } = this.#options;
    if (this.#limiter.isExhausted(clock.monotonicMs())) {
      if (!this.#isSuspended) damage.forEach((finding) => events.suspended(finding));
      this.#isSuspended = true;
      return;
    }
    this.#isSuspended = false;
    damage.forEach((finding) => events.repairing(finding));
    await repair(damage);
    // Only a successful repair counts: a failed one changed nothing.
    this.#limiter.record(clock.monotonicMs());
  }

  #reportKept(findings: readonly Finding[]): void {
    for (const finding of findings) {
      if (this.#reported.get(finding.path) !== finding.text) this.#options.events.kept(finding);
      this.#reported.set(finding.path, finding.text);
    }
    const paths = findings.map(({ path }) => path);
    for (const path of this.#reported.keys()) if (!paths.includes(path)) this.#reported.delete(path);
  }
}

/** Most repairs within a time window. */
interface RepairLimits {
  readonly count: number;
  readonly windowMs: number;
}

/** Prevents an endless fight between two installers: allows at most `count` repairs in any window of time. */
class RepairLimiter {
  readonly #limits: RepairLimits;
  #repairedAtMs: readonly number[] = [];

  constructor(limits: RepairLimits) {
    this.#limits = limits;
  }

  /** Whether no repair is allowed now. */
  isExhausted(nowMs: number): boolean {
    const { count, windowMs } = this.#limits;
    return this.#repairedAtMs.filter((atMs) => nowMs - atMs < windowMs).length >= count;
  }

  record(nowMs: number): void {
    this.#repairedAtMs = [...this.#repairedAtMs, nowMs].slice(-this.#limits.count);
  }
}
