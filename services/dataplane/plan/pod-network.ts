import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Address } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

/** What a pod's network takes from its node. */
export interface NodeDefaults {
  /** MTU of pods that ask for none. */
  readonly mtuBytes: number;
}

/** What a caller wants for one attachment, every field checked. */
export interface PodNetwork {
  readonly attachment: Attachment;
  /** Path of the pod's network namespace. */
  readonly netns: string;
  readonly hostInterfaceName: string;
  /** MAC address of the pod's end. */
  readonly mac: Mac;
  /** At least one. */
  readonly addresses: readonly Address[];
  /** Destinations that the pod reaches through its gateway; the default routes have been filled in. */
  readonly routes: readonly Prefix[];
  /** Undefined: as the node's. */
  readonly mtuBytes: number | undefined;
  /** Whether the pod forwards packets between its own interfaces. */
  readonly ipForwarding: boolean;
  /** What the pod may send from besides its addresses. */
  readonly sourcePrefixes: readonly Prefix[];
  /** Packets that may wait to be sent at each end; undefined: the kernel's default. */
  readonly txQueueLength: number | undefined;
  /** Of transmit queues, and of receive queues, at each end; undefined: the kernel's default. */
  readonly queueCount: number | undefined;
  /** podwire-ipam gave the addresses: a wire that is lost whole is restored only while it has them for the attachment. */
  readonly addressesFromIpam?: true;
}
