import type { Bench } from './bench.js';

export { Hopeless, NotApplicable, type Occasion } from './occasion.js';

/** The specification's requirement level, or this kit's own advice. */
export type Level = 'MUST' | 'SHOULD' | 'ADVICE';

/** One test of a plugin. */
export interface Case {
  /** Stable, unique, made of words with dots between. */
  readonly id: string;
  /** Where the specification says so. */
  readonly section: string;
  readonly level: Level;
  /** The behaviour of a plugin that passes. */
  readonly title: string;
  /** Runs the test. Faults go to the bench; an Error is a fault of the kit or of the machine. */
  readonly ask: (bench: Bench) => Promise<void>;
}

export type Status = 'pass' | 'fail' | 'not applicable' | 'error';

export interface Verdict {
  readonly id: string;
  readonly section: string;
  readonly level: Level;
  readonly title: string;
  readonly status: Status;
  /** The fault, or why the test does not apply. */
  readonly reasons: readonly string[];
  /** The commands and their results. */
  readonly evidence: readonly string[];
  readonly durationMs: number;
}
