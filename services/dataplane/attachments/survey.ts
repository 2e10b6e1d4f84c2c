import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_INTERFACE_PREFIX, HOST_MAC } from '@podwire/shared/attachment/names';

import type { AttachmentRecord } from '../pods/record.js';
import { attachmentOfAlias } from '../wiring/network.js';
import type { ObservedLink } from '../wiring/observed.js';

/** What to do about one thing that a start has found. */
export type Finding =
  /** Recorded: mended where it differs, finished where it is half done. */
  | { readonly type: 'mend'; readonly record: AttachmentRecord }
  /** A detach was cut off: it is finished. */
  | { readonly type: 'finish-detach'; readonly record: AttachmentRecord }
  /** No record, and the kernel has all of it: it stays, as a pod may live on it. */
  | { readonly type: 'adopt'; readonly attachment: Attachment; readonly link: ObservedLink }
  /** No record, and not complete: nobody was told that it is there. */
  | { readonly type: 'undo'; readonly attachment: Attachment | undefined; readonly link: ObservedLink };

export interface Found {
  readonly records: readonly AttachmentRecord[];
  /** The node's veth links. */
  readonly links: readonly ObservedLink[];
  /** Names of the links that the node routes pods' addresses to, by Podwire's own routes. */
  readonly routed: ReadonlySet<string>;
}

/** Compares what is recorded with what is there. What is not Podwire's is in no finding; nor are the dead, who have no wire. */
export function survey({ records, links, routed }: Found): Finding[] {
  const recorded = new Set(records.map(({ network }) => formatAttachment(network.attachment)));
  const names = new Set(records.map(({ network }) => network.hostInterfaceName));
  return [
    ...records.flatMap(findingOfRecord),
    ...links.flatMap((link): Finding[] => {
      const attachment = attachmentOfAlias(link.alias);
      if (attachment) {
        if (recorded.has(formatAttachment(attachment))) return [];
        return [{ type: isComplete(link, routed) ? 'adopt' : 'undo', attachment, link }];
      }
      return isBare(link) && !names.has(link.name) ? [{ type: 'undo', attachment: undefined, link }] : [];
    }),
  ];
}

function findingOfRecord(record: AttachmentRecord): Finding[] {
  switch (record.state) {
    case 'attached':
      return [{ type: 'mend', record }];
    case 'detaching':
      return [{ type: 'finish-detach', record }];
    case 'dead':
      return [];
  }
}

/** The node's routes are the last that is made for a pod: who has them has everything. */
export function isComplete(link: ObservedLink, routed: ReadonlySet<string>): boolean {
  return link.up && routed.has(link.name);
}

/** A link that was made and not noted as anybody's when its maker was killed; only Podwire makes such ones. */
export function isBare({ name, kind, alias, up, mac }: ObservedLink): boolean {
  return name.startsWith(HOST_INTERFACE_PREFIX) && kind === 'veth' && (alias ?? '') === '' && !up && mac === HOST_MAC;
}
