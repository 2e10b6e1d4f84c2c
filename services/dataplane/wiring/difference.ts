import type { Family } from '@podwire/shared/net/address';

import type { WantedEnd } from './network.js';
import type { ObservedEnd } from './observed.js';
import type { Side, Step } from './step.js';

/** One difference from the wanted state, in the notation of `ip` and `sysctl`. */
export interface Difference {
  /** `pod route default via 169.254.1.1 dev eth0 proto 87`. */
  readonly object: string;
  readonly wanted: string;
  readonly actual: string;
}

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

/** Of an address or a CIDR. */
export function familyOf(text: string): Family {
  return text.includes(':') ? 6 : 4;
}
