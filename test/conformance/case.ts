import type { Bench } from './bench.js';
import type { Version } from './specification/versions.js';
import type { Subject } from './subject.js';

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

/** What is known of the plugin before the first question, and what is wished of the run. */
export interface Occasion {
  readonly subject: Subject;
  /** Versions that its VERSION lists and this kit judges, oldest first. */
  readonly versions: readonly Version[];
  readonly seed: number;
  /** How many containers a storm has. */
  readonly pods: number;
  /** How many commands of a storm run at a time. */
  readonly parallel: number;
  /** How many times a plugin is killed in ADD, and again in DEL. */
  readonly kills: number;
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

/** Ends a case whose question does not arise. */
export class NotApplicable extends Error {}

/** Ends a case whose further questions make no sense after a fault, which the bench has. */
export class Hopeless extends Error {}
