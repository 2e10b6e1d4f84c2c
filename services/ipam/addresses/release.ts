import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { comparePrefixes, type Prefix } from '@podwire/shared/net/prefix';

import { addressOf, blocksOf, handleChanges, requireKnown, type HeldAddress } from '../blocks/holding.js';
import { endHolder, heldIn } from '../blocks/release-changes.js';
import { belongsTo, isUnattached } from '../records/attributes.js';
import type { Change, Decision, View } from '../records/view.js';

/** What a release came to. */
export interface Released {
  /** Of full length; empty when there was nothing to give back. */
  readonly addresses: readonly Prefix[];
}

/**
 * Gives back every address of an attachment, with its share of the handle and its endpoint, also one that names addresses which it holds
 * no more. What other attachments hold stays, and so do their endpoints, also under the same key.
 *
 * Addresses under the attachment's handle that tell no interface were given by Calico's own plugin, and go with it, as does that plugin's
 * endpoint of the container: its DEL frees all that the handle has.
 *
 * A block keeps its owner when it becomes empty; one that nobody owns goes, as with Calico. Idempotent: nothing to release is an
 * answer.
 */
export function release(view: View, attachment: Attachment, nowMs: number): Decision<Released> {
  const id = handleId(attachment);
  requireKnown(view, id);
  const held = releasedWith(view, attachment);
  const mark: Change = { type: 'release', handleId: id, nowMs };
  return {
    changes: [
      ...endHolder(view, { ending: { type: 'attachment', attachment }, held, nowMs }),
      ...(held.length > 0 ? [] : handleChanges(view, id, [])),
      mark,
    ],
    outcome: { addresses: held.map(addressOf) },
  };
}

/** What a release of the attachment gives back, IPv4 before IPv6. */
export function releasedWith(view: View, attachment: Attachment): HeldAddress[] {
  const id = handleId(attachment);
  const isOwn = belongsTo(attachment);
  return blocksOf(view, view.handle(id))
    .sort((a, b) => comparePrefixes(a.prefix, b.prefix))
    .flatMap((block) =>
      heldIn(block, (attributes) => isOwn(attributes) || (attributes.handleId === id && isUnattached(attributes))),
    );
}
