import type { Clock } from '@podwire/shared/runtime/clock';

import type { Finding } from './inspect.js';

/** Receives changes made to an installation by other programs, for the log. */
export interface KeepEvents {
  /** Something was found that will be put back. */
  repairing(finding: Finding): void;
  /** Podwire's file differs: another release's installer, or an operator, meant it. Told once for each state. */
  leftAlone(finding: Finding): void;
  /** Others go on changing files, so that nothing is put back for a while. Told once. */
  givenUp(finding: Finding): void;
  /** Others' files beside ours are in its way. Told once for as long as they are. */
  warned(text: string): void;
  /** Looking or repairing failed; it is tried again. */
  failed(error: unknown): void;
}

export interface KeepOptions {
  readonly inspect: () => Promise<readonly Finding[]>;
  /** Warnings about foreign files. */
  readonly warnings: () => Promise<readonly string[]>;
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
 * Checks an installation periodically and restores missing, broken or foreign files until the signal fires. A different
 * file that is Podwire's is kept: another release may have written it.
 */
export async function keepInstalled(options: KeepOptions): Promise<void> {
  const { clock, intervalMs, signal } = options;
  const keeper = new Keeper(options);
  // The install step has already logged these.
  await keeper.begin();
  while ((await clock.sleep(intervalMs, signal)) === 'elapsed') await keeper.look();
}

class Keeper {
  readonly #options: KeepOptions;
  readonly #restraint: Restraint;
  /** Last logged text of files left alone, by path. */
  readonly #told = new Map<string, string>();
  /** What was warned of last; undefined before the first time. */
  #warnings: readonly string[] | undefined;
  #hasGivenUp = false;

  constructor(options: KeepOptions) {
    this.#options = options;
    this.#restraint = new Restraint(options.limits);
  }

  async begin(): Promise<void> {
    try {
      await this.#lookAround();
    } catch (error) {
      this.#warnings = [];
      this.#options.events.failed(error);
    }
  }

  async look(): Promise<void> {
    const { inspect, events, signal } = this.#options;
    try {
      const findings = await inspect();
      const damage = findings.filter(({ difference }) => difference !== 'different');
      this.#tellOfOthers(findings.filter(({ difference }) => difference === 'different'));
      if (damage.length > 0) await this.#repair(damage);
      await this.#lookAround();
    } catch (error) {
      if (!signal.aborted) events.failed(error);
    }
  }

  /** Tells of what is new since the last time; the first time of nothing. */
  async #lookAround(): Promise<void> {
    const { warnings, events } = this.#options;
    const found = await warnings();
    const before = this.#warnings ?? found;
    this.#warnings = found;
    for (const text of found) if (!before.includes(text)) events.warned(text);
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

/** How many restores are allowed before restoring pauses, if another program keeps removing the file. */
interface RestraintLimits {
  readonly count: number;
  readonly windowMs: number;
}

/** Keeps two installers that undo each other's work from doing so for ever: at most `count` repairs in any window of time. */
class Restraint {
  readonly #limits: RestraintLimits;
  #repairedAtMs: readonly number[] = [];

  constructor(limits: RestraintLimits) {
    this.#limits = limits;
  }

  /** Whether no repair may be made for now. */
  isSpent(nowMs: number): boolean {
    const { count, windowMs } = this.#limits;
    return this.#repairedAtMs.filter((atMs) => nowMs - atMs < windowMs).length >= count;
  }

  /** Counts a repair. */
  note(nowMs: number): void {
    this.#repairedAtMs = [...this.#repairedAtMs, nowMs].slice(-this.#limits.count);
  }
}
