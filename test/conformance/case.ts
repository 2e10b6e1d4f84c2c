import type { Bench } from './bench.js';

export { Hopeless, NotApplicable, type Occasion } from './occasion.js';

/** What the specification asks for, in its own words for how much, or what we advise beside it. */
export type Level = 'MUST' | 'SHOULD' | 'ADVICE';

/** One question to a plugin. */
export interface Case {
  /** Stable, unique, made of words with dots between. */
  readonly id: string;
  /** Where the specification says so. */
  readonly section: string;
  readonly level: Level;
  /** What a plugin that passes does. */
  readonly title: string;
  /** Asks. Faults go to the bench; an Error is a fault of the kit or of the machine. */
  readonly ask: (bench: Bench) => Promise<void>;
}

export type Status = 'pass' | 'fail' | 'not applicable' | 'error';

export interface Verdict {
  readonly id: string;
  readonly section: string;
  readonly level: Level;
  readonly title: string;
  readonly status: Status;
  /** What is wrong, or why the question does not arise. */
  readonly reasons: readonly string[];
  /** What was run, and what came of it. */
  readonly evidence: readonly string[];
  readonly durationMs: number;
}
