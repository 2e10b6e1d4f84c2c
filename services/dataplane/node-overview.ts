import type { KnownSession } from './bird/bird-status.js';
import type { RegisteredAddresses } from './node/registration.js';
import type { NodeStatus } from './routes/status.js';
import type { Condition } from './routes/wanted.js';
import type { RoutingMode } from './routing/facts.js';

/** The node as its dataplane sees it, for whoever asks. */
export interface NodeOverview {
  readonly nodeName: string;
  /** As last registered in IPAM; undefined: nothing was registered yet. */
  readonly registered: RegisteredAddresses | undefined;
  readonly routing: RoutingMode;
  /** Undefined where the node is no part of a cluster. */
  readonly routes: NodeStatus | undefined;
  readonly podMtuBytes: number;
  readonly sessions: readonly KnownSession[];
  readonly attachmentCount: number;
  readonly conditions: readonly Condition[];
}
