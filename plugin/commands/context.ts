import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { HangingPlugins } from '../addresses/circuit-breaker.js';
import type { Givers } from '../addresses/provider-history.js';
import type { Dataplane, Ipam, Limits } from '../clients/clients.js';
import type { DataplaneUpkeep, IpamUpkeep } from '../clients/upkeep.js';
import type { Journal } from '../journal/journal.js';
import type { KnownAllocations } from '../journal/known-allocations.js';
import type { NetnsReader } from '../requests/netns.js';
import type { Notices } from '../requests/once-logger.js';

/** What commands work with. */
export interface Tools {
  readonly ipam: Ipam;
  readonly dataplane: Dataplane;
  /** The same services, for what is not about one pod. */
  readonly upkeep: { readonly ipam: IpamUpkeep; readonly dataplane: DataplaneUpkeep };
  /** What is still to do for attachments whose DEL has succeeded. */
  readonly journal: Journal;
  readonly knownAllocations: KnownAllocations;
  /** Who gave addresses on this node, also before this process. */
  readonly givers: Givers;
  readonly hanging: HangingPlugins;
  readonly netns: NetnsReader;
  /** Name of the node, where the network configuration names none. */
  readonly nodeName: string;
  readonly clock: Clock;
  readonly log: Logger;
  readonly notices: Notices;
  /** Time for undoing a failed ADD, in milliseconds, beside the time of the ADD itself. */
  readonly cleanUpTimeoutMs: number;
  /** Time that a DEL gives each service, in milliseconds, before it leaves the rest to the journal. */
  readonly delServiceTimeoutMs: number;
  /** Fires on SIGTERM: no more commands are accepted. */
  readonly stopping: AbortSignal;
  /** Fires when the grace period for running commands is over. Work without a caller is then left to the journal. */
  readonly ending: AbortSignal;
}

/** What a command works with, and the time that it has. */
export interface CommandTools extends Tools {
  readonly limits: Limits;
}
