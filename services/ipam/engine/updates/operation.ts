import type { Clock } from '@podwire/shared/runtime/clock';

import type { Block } from '../../records/block.js';
import type { UnknownNodes } from '../../records/node.js';
import type { View } from '../../records/view.js';
import type { Events } from '../events.js';
import type { Updater } from './update-loop.js';

/** What every operation stands on. */
export interface IpamOptions {
  /** The compare-and-swap loop over the datastore. */
  readonly updates: Pick<Updater, 'update' | 'read' | 'peek'>;
  readonly events: Events;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
  /** How requests for unregistered nodes are handled. */
  readonly unknownNodes: UnknownNodes['policy'];
}

/** Looks at the datastore without changing it. @throws what `look` throws, and the failures of every operation */
export function read<Result>(
  { updates }: Pick<IpamOptions, 'updates'>,
  query: (view: View) => Result,
  signal: AbortSignal,
): Promise<Result> {
  return updates.read(query, { signal });
}

/** All that changes the blocks of one node goes into one lane, so that it does not lose its comparisons to itself. */
export function nodeLane(nodeName: string): string {
  return `node/${nodeName}`;
}

/** The lane of all that changes a block: its owner's. Only a choice of the cheaper way, as any lane is right. */
export function blockLane(block: Block | undefined): string {
  return nodeLane(block?.owner?.name ?? '');
}

/** All that changes pools. */
export const POOLS_LANE = 'pools';

/** How a request for an unregistered node is handled. */
export function unknownNodes({ unknownNodes: policy, newUid }: IpamOptions): UnknownNodes {
  return policy === 'refuse' ? { policy } : { policy, uid: newUid() };
}
