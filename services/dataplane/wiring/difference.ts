import type { Difference } from '@podwire/shared/attachment/pod-network';
import type { Family } from '@podwire/shared/net/address';

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

/** Of an address or a CIDR. */
export function familyOf(text: string): Family {
  return text.includes(':') ? 6 : 4;
}
