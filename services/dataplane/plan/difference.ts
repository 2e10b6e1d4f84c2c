import type { Step } from './step.js';

/** One thing that is not as wanted, in the notation of `ip` and `sysctl`. */
export interface Difference {
  /** `pod route default via 169.254.1.1 dev eth0 proto 87`. */
  readonly object: string;
  readonly wanted: string;
  readonly actual: string;
}

/** A step, and the differences that it mends. */
export interface Mend {
  readonly step: Step;
  readonly differences: readonly Difference[];
}
