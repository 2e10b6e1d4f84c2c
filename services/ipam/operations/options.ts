import type { Clock } from '@podwire/shared/runtime/clock';

import type { View } from '../allocator/view.js';
import type { Events } from '../events.js';
import type { Updater } from '../store/update.js';

/** What every operation stands on. */
export interface IpamOptions {
  /** The compare-and-swap loop over the datastore. */
  readonly updates: Pick<Updater, 'update'>;
  readonly events: Events;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
}

/** Reads have nothing to commit, and so never wait in their lane. */
const READS_LANE = 'reads';

/** Looks at the datastore without changing it. @throws what `look` throws, and the failures of every operation */
export function read<Result>(
  { updates }: Pick<IpamOptions, 'updates'>,
  look: (view: View) => Result,
  signal: AbortSignal,
): Promise<Result> {
  return updates.update(READS_LANE, (view) => ({ changes: [], outcome: look(view) }), { signal });
}

/** All that changes the blocks of one node goes into one lane, so that it does not lose its comparisons to itself. */
export function nodeLane(nodeName: string): string {
  return `node/${nodeName}`;
}

/** All that changes pools. */
export const POOLS_LANE = 'pools';
