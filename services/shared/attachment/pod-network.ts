import type { Address } from '../net/address.js';
import type { Mac } from '../net/mac.js';
import type { Prefix } from '../net/prefix.js';
import type { PodName } from './allocation.js';
import type { Attachment } from './attachment.js';
import type { Bandwidth } from './bandwidth.js';
import type { HostPort } from './host-port.js';

/** The kernel's limit of the queues of an interface. */
export const MAX_QUEUE_COUNT = 4096;

/** The wanted network of one attachment. */
export interface PodNetwork {
  readonly attachment: Attachment;
  /** Path of the pod's network namespace. */
  readonly netns: string;
  readonly hostInterfaceName: string;
  /** MAC address of the pod's end. */
  readonly mac: Mac;
  /** Addresses, at least one. */
  readonly addresses: readonly Address[];
  /** Destinations that the pod reaches through its gateway; the default routes have been filled in. */
  readonly routes: readonly Prefix[];
  /** Undefined: as the node's. */
  readonly mtuBytes: number | undefined;
  /** Whether the pod forwards packets between its own interfaces. */
  readonly ipForwarding: boolean;
  /** Source prefixes that the pod may send from besides its addresses. */
  readonly sourcePrefixes: readonly Prefix[];
  /** Ports of the node that lead to the pod. */
  readonly hostPorts: readonly HostPort[];
  /** Limits of the pod's packets; absent: not limited. */
  readonly bandwidth?: Bandwidth;
  /** Transmit queue length of each end, in packets; undefined: the kernel's default. */
  readonly txQueueLength: number | undefined;
  /** Number of transmit queues, and of receive queues, at each end; undefined: the kernel's default. */
  readonly queueCount: number | undefined;
  /** podwire-ipam assigned the addresses: a lost wire is restored only while it holds them for the attachment. */
  readonly addressesFromIpam?: true;
  /** The pod whose addresses another IPAM plugin allocated, for its workload endpoint. */
  readonly otherIpam?: { readonly pod: PodName | undefined };
}

/** One difference from the wanted state, in the notation of `ip` and `sysctl`. */
export interface Difference {
  /** `pod route default via 169.254.1.1 dev eth0 proto 87`. */
  readonly object: string;
  readonly wanted: string;
  readonly actual: string;
}
