import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { AttachmentRecord } from '../pods/record.js';
import type { Difference } from '../wiring/difference.js';
import type { ObservedLink } from '../wiring/observed.js';

/** A pod that is wired. */
export interface Attached {
  readonly host: ObservedLink;
  readonly pod: ObservedLink;
  /** Number of changes that were made; 0 when everything was as wanted. */
  readonly changes: number;
}

/** The wire that is to go. */
export interface Detachment {
  readonly attachment: Attachment;
  readonly hostInterfaceName: string;
  /** Path of the pod's namespace, where the caller knows it; by then it may lead nowhere, or to another pod's. */
  readonly netns?: string | undefined;
}

/** What came of looking after an attachment that is recorded. */
export type Mended =
  /** It is as recorded now; these were the differences. */
  | { readonly outcome: 'as-wanted'; readonly differences: readonly Difference[] }
  /** Its namespace is not at the path any more, or cannot be told from another one; nothing was changed. */
  | { readonly outcome: 'namespace-gone' }
  /** Its whole wire is gone, and its addresses are IPAM's to confirm first; nothing was changed. */
  | { readonly outcome: 'wire-lost'; readonly record: AttachmentRecord }
  /** It is not recorded, or is being taken down. */
  | { readonly outcome: 'not-attached' };
