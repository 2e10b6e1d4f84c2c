import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { addressAt, formatPrefix, hostPrefix, type Prefix } from '@podwire/shared/net/prefix';

import { holderOf } from './attributes.js';
import { releaseAddresses, usedCount } from './block.js';
import { endpointKey, storedEndpoint } from './endpoint.js';
import { handleChanges, heldBy, type HeldAddress } from './holding.js';
import type { Block } from './records.js';
import type { Change, Decision, View } from './view.js';

/** What a release came to. */
export interface Released {
  /** Of full length; empty when the attachment held none. */
  readonly addresses: readonly Prefix[];
}

/**
 * Gives back every address of an attachment, with its share of the handle and its endpoint. An endpoint whose name another
 * container of the pod has taken over stays, and so does what that container holds.
 *
 * A block keeps its owner when it becomes empty; one that nobody owns goes, as with Calico. Idempotent: nothing to release is an
 * answer.
 */
export function release(view: View, attachment: Attachment): Decision<Released> {
  const held = heldBy(view, attachment);
  const blocks = freeAll(held);
  return {
    changes: [
      ...blocks.map(blockChange),
      ...handleChanges(view, handleId(attachment), blocks),
      ...endpointChanges(view, attachment, held),
    ],
    outcome: { addresses: held.map(({ block, ordinal }) => hostPrefix(addressAt(block.prefix, ordinal))) },
  };
}

function freeAll(held: readonly HeldAddress[]): Block[] {
  const byBlock = new Map<string, HeldAddress[]>();
  for (const address of held) {
    const cidr = formatPrefix(address.block.prefix);
    byBlock.set(cidr, [...(byBlock.get(cidr) ?? []), address]);
  }
  return [...byBlock.values()].flatMap((addresses) => {
    const ordinals = addresses.map(({ ordinal }) => ordinal);
    return addresses.slice(0, 1).map(({ block }) => releaseAddresses(block, ordinals));
  });
}

function blockChange(block: Block): Change {
  const unwanted = usedCount(block) === 0 && !block.owner;
  return { type: unwanted ? 'delete' : 'put', record: { kind: 'block', value: block } };
}

function endpointChanges(view: View, attachment: Attachment, held: readonly HeldAddress[]): Change[] {
  const changes = new Map<string, Change>();
  for (const { attributes } of held) {
    const key = endpointKey({ attachment, ...holderOf(attributes) });
    const value = storedEndpoint(view, key, attachment);
    if (value)
      changes.set(`${key.namespace}/${key.name}`, { type: 'delete', record: { kind: 'endpoint', key, value } });
  }
  return [...changes.values()];
}
