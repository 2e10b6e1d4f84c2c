import type { Clock } from '@podwire/shared/runtime/clock';

import type { Block } from '../../records/block.js';
import type { UnknownNodes } from '../../records/node.js';
import type { ServiceAddress } from '../../records/pool.js';
import type { View } from '../../records/view.js';
import type { Events } from '../events.js';
import type { Updater } from './update-loop.js';

/** Dependencies of every operation. */
export interface IpamOptions {
  /** The compare-and-swap loop over the datastore. */
  readonly updates: Pick<Updater, 'update' | 'read' | 'peek'>;
  readonly events: Events;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
  /** How requests for unregistered nodes are handled. */
  readonly unknownNodes: UnknownNodes['policy'];
  /** Addresses of podwire-ipam, its datastore and the API server, which no pool may have. Default: none. */
  readonly services?: readonly ServiceAddress[];
  /** Whether {@link updates} commits nothing, so that nodes are not asked. Default: false. */
  readonly isDryRun?: boolean;
}

/** Reads the datastore. @throws what `query` throws, and the failures of every operation */
export function read<Result>(
  { updates }: Pick<IpamOptions, 'updates'>,
  query: (view: View) => Result,
  signal: AbortSignal,
): Promise<Result> {
  return updates.read(query, { signal });
}

/** One lane for all changes of a node's blocks, so that they do not conflict with each other. */
export function nodeLane(nodeName: string): string {
  return `node/${nodeName}`;
}

/** The lane for changes of a block: its owner's. An optimization; any lane is correct. */
export function blockLane(block: Block | undefined): string {
  return nodeLane(block?.owner?.name ?? '');
}

/** Lane of registrations and sessions of all nodes: a session that is opened right after its node's registration sees it. */
export const REGISTRATIONS_LANE = 'registrations';

/** Lane of all pool changes. */
export const POOLS_LANE = 'pools';

/** How a request for an unregistered node is handled. */
export function unknownNodes({ unknownNodes: policy, newUid }: IpamOptions): UnknownNodes {
  return policy === 'refuse' ? { policy } : { policy, uid: newUid() };
}
