import type { Version } from './specification/versions.js';
import type { Subject } from './subject.js';

/** Facts about the plugin before the first case, and options of the run. */
export interface Occasion {
  readonly subject: Subject;
  /** Versions that its VERSION lists and this kit knows, oldest first. */
  readonly versions: readonly Version[];
  readonly seed: number;
  /** The number of containers of a storm. */
  readonly pods: number;
  /** The number of concurrent commands of a storm. */
  readonly parallel: number;
  /** How many times a plugin is killed in ADD, and again in DEL. */
  readonly kills: number;
  /** Time limit for a plugin's leftovers to disappear, in milliseconds; 20 s by default. */
  readonly settlesWithinMs?: number;
}

/** Ends a case that does not apply. */
export class NotApplicable extends Error {}

/** Ends a case that cannot continue after a fault, which the bench has recorded. */
export class Hopeless extends Error {}
