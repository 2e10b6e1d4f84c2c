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
export async function reconcileInstallation(options: ReconcileOptions): Promise<void> {
  const { clock, intervalMs, signal } = options;
  const reconciler = new Reconciler(options);
  // The install step has already logged the warnings of this first check.
  await reconciler.recordWarnings();
  while ((await clock.sleep(intervalMs, signal)) === 'elapsed') await reconciler.reconcile();
}

class Reconciler {
  readonly #options: ReconcileOptions;
  readonly #limiter: RepairLimiter;
  /** Last reported text of each kept file, by path. */
  readonly #reported = new Map<string, string>();
  /** Warnings of the last check; undefined before the first. */
  #warnings: readonly string[] | undefined;
  #isSuspended = false;

  constructor(options: ReconcileOptions) {
    this.#options = options;
    this.#limiter = new RepairLimiter(options.limits);
  }

  async recordWarnings(): Promise<void> {
    try {
      await this.#checkWarnings();
    } catch (error) {
      this.#warnings = [];
      this.#options.events.failed(error);
    }
  }

  async reconcile(): Promise<void> {
    const { inspect, events, signal } = this.#options;
    try {
      const findings = await inspect();
      const damage = findings.filter(({ difference }) => difference !== 'different');
      this.#reportKept(findings.filter(({ difference }) => difference === 'different'));
      if (damage.length > 0) await this.#repair(damage);
      await this.#checkWarnings();
    } catch (error) {
      if (!signal.aborted) events.failed(error);
    }
  }

  /** Reports warnings that the last check did not have; none at the first check. */
  async #checkWarnings(): Promise<void> {
    const { warnings, events } = this.#options;
    const current = await warnings();
    const previous = this.#warnings ?? current;
    this.#warnings = current;
    for (const text of current) if (!previous.includes(text)) events.warned(text);
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
