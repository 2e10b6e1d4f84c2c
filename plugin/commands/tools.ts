import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Dataplane, Ipam, Limits } from '../clients/clients.js';
import type { NetnsReader } from '../netns.js';

/** What commands work with. */
export interface Tools {
  readonly ipam: Ipam;
  readonly dataplane: Dataplane;
  readonly netns: NetnsReader;
  /** Name of the node, where the network configuration names none. */
  readonly nodeName: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** Time for undoing a failed ADD, in milliseconds, beside the time of the ADD itself. */
  readonly cleanUpTimeoutMs: number;
}

/** What a command works with, and the time that it has. */
export interface CommandTools extends Tools {
  readonly limits: Limits;
}
