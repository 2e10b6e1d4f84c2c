import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Address } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';
import type { Prefix } from '@podwire/shared/net/prefix';

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
  readonly mtuBytes: number;
  /** Whether the pod forwards packets between its own interfaces. */
  readonly ipForwarding: boolean;
}
