import type { Address } from '@podwire/shared/net/address';

import type { Demand } from '../blocks/demand.js';
import type { View } from '../records/view.js';

/** The addresses that an operation takes, if it can. */
export interface Need {
  /** What it takes from pools. */
  readonly demands: (view: View) => readonly Demand[];
  /** The addresses that it requests. */
  readonly addresses: readonly Address[];
}

/** Makes room for operations that are refused because addresses are in use. */
export interface Relief {
  /**
   * Runs an operation, and repeats it while room may be made.
   * @throws the failure of the first run, unless a repetition succeeds or fails for another reason
   */
  readonly attempt: <Result>(need: Need, run: () => Promise<Result>, signal: AbortSignal) => Promise<Result>;
}
