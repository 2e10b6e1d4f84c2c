import type { Difference } from '@podwire/shared/attachment/pod-network';

import type { WantedEnd } from './network.js';
import type { ObservedEnd } from './observed.js';
import type { Side, Step } from './step.js';

/** A step, and the differences that it repairs. */
export interface Repair {
  readonly step: Step;
  readonly differences: readonly Difference[];
}

/** One end of the wire: wanted and observed. */
export interface End {
  readonly side: Side;
  readonly wanted: WantedEnd;
  readonly observed: ObservedEnd;
}
