/** How often something is put back before whoever removes it has its way for a while. */
export interface RestraintLimits {
  readonly count: number;
  readonly windowMs: number;
}

/** Keeps two installers that undo each other's work from doing so for ever: at most `count` repairs in any window of time. */
export class Restraint {
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
