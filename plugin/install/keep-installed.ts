import type { Clock } from '@podwire/shared/runtime/clock';

import type { Finding } from './inspect.js';
import { Restraint, type RestraintLimits } from './wanted/restraint.js';

/** What others do to an installation, for the log. */
export interface KeepEvents {
  /** Something was found that will be put back. */
  repairing(finding: Finding): void;
  /** Podwire's file differs: another release's installer, or an operator, meant it. Told once for each state. */
  leftAlone(finding: Finding): void;
  /** Others go on changing files, so that nothing is put back for a while. Told once. */
  givenUp(finding: Finding): void;
  /** Looking or repairing failed; it is tried again. */
  failed(error: unknown): void;
}

export interface KeepOptions {
  readonly inspect: () => Promise<readonly Finding[]>;
  /** Puts back what was found damaged, and touches nothing else. */
  readonly repair: (damage: readonly Finding[]) => Promise<unknown>;
  readonly events: KeepEvents;
  readonly clock: Clock;
  readonly intervalMs: number;
  readonly limits: RestraintLimits;
  /** Fires when it is to end. */
  readonly signal: AbortSignal;
}

/** Repairs of the shipped program: a wrong file is rare, and two installers that fight are to be seen in the log, not felt. */
export const KEEP_LIMITS: RestraintLimits = { count: 5, windowMs: 600_000 };

/**
 * Looks at an installation again and again, and puts back what is missing, broken or not Podwire's, until the signal fires. A file
 * that is Podwire's but different is left to whoever wrote it.
 */
export async function keepInstalled(options: KeepOptions): Promise<void> {
  const { clock, intervalMs, signal } = options;
  const keeper = new Keeper(options);
  while ((await clock.sleep(intervalMs, signal)) === 'elapsed') await keeper.look();
}

class Keeper {
  readonly #options: KeepOptions;
  readonly #restraint: Restraint;
  /** What was told of files that are left alone, by path. */
  readonly #told = new Map<string, string>();
  #hasGivenUp = false;

  constructor(options: KeepOptions) {
    this.#options = options;
    this.#restraint = new Restraint(options.limits);
  }

  async look(): Promise<void> {
    const { inspect, events, signal } = this.#options;
    try {
      const findings = await inspect();
      const damage = findings.filter(({ difference }) => difference !== 'different');
      this.#tellOfOthers(findings.filter(({ difference }) => difference === 'different'));
      if (damage.length > 0) await this.#repair(damage);
    } catch (error) {
      if (!signal.aborted) events.failed(error);
    }
  }

  async #repair(damage: readonly Finding[]): Promise<void> {
    const { repair, events, clock } = this.#options;
    if (this.#restraint.isSpent(clock.nowMs())) {
      if (!this.#hasGivenUp) damage.forEach((finding) => events.givenUp(finding));
      this.#hasGivenUp = true;
      return;
    }
    this.#hasGivenUp = false;
    damage.forEach((finding) => events.repairing(finding));
    await repair(damage);
    // What failed changed nothing, and is no part of a fight.
    this.#restraint.note(clock.nowMs());
  }

  #tellOfOthers(findings: readonly Finding[]): void {
    for (const finding of findings) {
      if (this.#told.get(finding.path) !== finding.text) this.#options.events.leftAlone(finding);
      this.#told.set(finding.path, finding.text);
    }
    const paths = findings.map(({ path }) => path);
    for (const path of this.#told.keys()) if (!paths.includes(path)) this.#told.delete(path);
  }
}
