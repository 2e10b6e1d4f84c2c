import type { ClusterChange, ClusterView } from './cluster/cluster.js';
import type { Condition } from './conditions/conditions.js';
import type { LeaseCounts } from './node/node-rpc.js';
import type { NodeNameClaim } from './node/registration.js';
import type { AttachedLink } from './pods/kernel.js';
import type { AttachmentRecord } from './records/record.js';
import type { EndpointLookup } from './repair/lost-wires.js';
import type { AttachmentRegistry } from './records/registry.js';

/** The part of this process that settles the addresses of the attachments' records with podwire-ipam, as the dataplane calls it. */
export interface NodeAddressHooks extends NodeNameClaim {
  /** podwire-ipam's record of an attachment. */
  readonly endpoint: EndpointLookup;
  /**
   * The addresses of the record have to be bound or returned, or the endpoint of a pod with other addresses was added or
   * removed. Returns at once; must not throw.
   */
  settle(record: AttachmentRecord): void;
  follow(view: ClusterView, change: ClusterChange): void;
  conditions(): readonly Condition[];
  counts(): LeaseCounts;
}

export interface NodeAddressParts {
  /** Loaded. */
  readonly registry: AttachmentRegistry;
  /** The attachments that the kernel holds. */
  readonly links: () => Promise<readonly AttachedLink[]>;
}

/** Called before the first call of the dataplane. */
export type OpenNodeAddresses = (parts: NodeAddressParts) => Promise<NodeAddressHooks>;
