import { Failure } from '@podwire/shared/failure/failure';
import { compareAddresses, type Address } from '@podwire/shared/net/address';
import { addressAt } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { heldByHandle } from '../addresses/release.js';
import { requireHandleReadable } from '../records/handle-counts.js';
import type { Handle, HeldAddress } from '../records/block.js';
import { smallestItems, type Page, type PageQuery } from '../records/page.js';
import type { View } from '../records/view.js';

export interface HandleQuery extends PageQuery {
  /** Only handles whose names begin so; empty for all. */
  readonly prefix: string;
}

export interface HandleAddressQuery {
  readonly handleId: string;
  /** The address behind which the page begins; undefined for the first page. */
  readonly after: Address | undefined;
  readonly limit: number;
}

/** A page of the handles, in the order of their names. */
export function listHandles(view: View, { after, limit, prefix }: HandleQuery): Page<Handle> {
  const items = smallestItems(handlesAfter(view, { after, prefix }), limit + 1, (a, b) => compareTexts(a.id, b.id));
  return { items: items.slice(0, limit), more: items.length > limit };
}

function* handlesAfter(view: View, { after, prefix }: Omit<HandleQuery, 'limit'>): Generator<Handle, void, void> {
  for (const handle of view.handles()) if (handle.id > after && handle.id.startsWith(prefix)) yield handle;
}

/**
 * A page of the addresses of a handle, in address order, read from the blocks.
 * @throws Failure HANDLE_NOT_FOUND when it has none; STORE_CORRUPT when it, or a block that it names, cannot be read
 */
export function listHandleAddresses(view: View, query: HandleAddressQuery): Page<HeldAddress> {
  const { handleId, after, limit } = query;
  requireHandleReadable(view, handleId);
  const held = heldByHandle(view, { handleId, searchesAllBlocks: false });
  if (held.length === 0) {
    const text = `handle ${handleId} holds no address; it was released, or never allocated for`;
    throw new Failure('HANDLE_NOT_FOUND', text, { details: { handle: handleId } });
  }
  const addressIn = ({ block, ordinal }: HeldAddress): Address => addressAt(block.prefix, ordinal);
  const following = held
    .sort((a, b) => compareAddresses(addressIn(a), addressIn(b)))
    .filter((address) => !after || compareAddresses(addressIn(address), after) > 0);
  return { items: following.slice(0, limit), more: following.length > limit };
}
