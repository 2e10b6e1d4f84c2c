import type { Version } from './specification/versions.js';
import type { Subject } from './subject.js';

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
  /** How long what a plugin left may take to go away by itself, in milliseconds; 20 s where it is not given. */
  readonly settlesWithinMs?: number;
}

/** Ends a case whose question does not arise. */
export class NotApplicable extends Error {}

/** Ends a case whose further questions make no sense after a fault, which the bench has. */
export class Hopeless extends Error {}
