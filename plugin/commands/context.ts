import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { IpamCircuitBreaker } from '../addresses/ipam-plugin.js';
import type { ProviderHistory } from '../addresses/provider-history.js';
import type { Dataplane, Ipam, Limits, NodeAddresses } from '../clients/clients.js';
import type { IpamUpkeep } from '../clients/upkeep.js';
import type { Journal } from '../journal/journal.js';
import type { KnownAllocations } from '../journal/known-allocations.js';
import type { NetnsReader } from '../requests/netns.js';
import type { OnceLogger } from '../requests/once-logger.js';

/** Dependencies of the commands. */
export interface Tools {
  readonly ipam: Ipam;
  readonly dataplane: Dataplane;
  readonly nodeAddresses: NodeAddresses;
  /** podwire-ipam, for GC, STATUS and the journal. */
  readonly upkeep: IpamUpkeep;
  /** Pending releases of attachments whose DEL has succeeded. */
  readonly journal: Journal;
  readonly knownAllocations: KnownAllocations;
  readonly providerHistory: ProviderHistory;
  readonly circuitBreaker: IpamCircuitBreaker;
  readonly netns: NetnsReader;
  /** Default for network configurations without a node name. */
  readonly nodeName: string;
  readonly clock: Clock;
  readonly log: Logger;
  readonly onceLogger: OnceLogger;
  /** Timeout of the rollback of a failed ADD, in milliseconds, in addition to the ADD's own. */
  readonly cleanUpTimeoutMs: number;
  /** Timeout of each service call of a DEL, in milliseconds; then DEL leaves the release to the journal. */
  readonly delServiceTimeoutMs: number;
  /** Fires on SIGTERM: no more commands are accepted. */
  readonly stopping: AbortSignal;
  /** Fires when the grace period for running commands is over. Releases without a caller are then left to the journal. */
  readonly ending: AbortSignal;
}

export interface CommandTools extends Tools {
  readonly limits: Limits;
}
