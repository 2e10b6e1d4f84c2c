import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, ordinalOf, prefixContains, prefixOf } from '@podwire/shared/net/prefix';

import type { Place } from '../addresses/choice.js';
import { sameOwner, type Demand } from '../blocks/demand.js';
import {
  beginSearch,
  claimOffer,
  collect,
  confirm,
  expectPool,
  expectRules,
  takeoverOffer,
  type Offer,
  type Search,
} from '../blocks/search.js';
import { outOfUse, overlappingBlock, takenAcross } from '../pools/pools.js';
import { wrongUse } from '../pools/selection.js';
import { corruptFailure, requireReadable } from '../records/absence.js';
import { attributesAt, usedCount } from '../records/block.js';
import type { View } from '../records/view.js';
import type { AllocationAttributes, Block, Pool } from './records.js';

/**
 * An address that is asked for by itself. Who asks for it knows what it is: reservations, selectors, assignmentMode and the cap of
 * blocks do not stand in its way; its pool being out of use, the pool's uses and strict affinity do.
 */

/**
 * @param demand - its pools are not looked at
 * @throws Failure ADDRESS_REFUSED, ADDRESS_IN_USE; STORE_CORRUPT when its block cannot be read, or the configuration, while it cools down
 */
export function offerOf(view: View, demand: Demand, address: Address): Place {
  const pool = requirePoolFor(view, demand, address);
  const search = beginSearch(view, demand, [pool]);
  const stored = overlappingBlock(view, hostPrefix(address));
  const unreadable = stored ? undefined : view.unreadableBlock(hostPrefix(address));
  if (unreadable) throw corruptFailure(unreadable);
  const offer = stored ? existingOffer(search, { stored, pool, address }) : newOffer(search, pool, address);
  return { offer, ordinal: ordinalOf(offer.block.prefix, address) };
}

function requirePoolFor(view: View, demand: Demand, address: Address): Pool {
  const text = formatAddress(address);
  const pool = view.pools().find(({ prefix }) => prefixContains(prefix, address));
  if (!pool) throw refused(address, `${text} is in no pool; ask for an address of a pool, or create one around it`);
  const reason = outOfUse(pool) ?? wrongUse(pool, demand.use);
  if (reason === undefined) return pool;
  const name = `${text} is in pool "${pool.name}" ${formatPrefix(pool.prefix)}`;
  throw refused(address, `${name}, which is ${reason}; ask for an address of another pool`);
}

interface Stored {
  readonly stored: Block;
  readonly pool: Pool;
  readonly address: Address;
}

function existingOffer(search: Search, { stored, pool, address }: Stored): Offer {
  const { view, demand, config } = search;
  const block = collect(search, stored);
  const attributes = attributesAt(block, ordinalOf(block.prefix, address));
  // Whether it still cools down, and until when, the configuration tells.
  if (attributes?.releasedAtMs !== undefined) requireReadable(view, { kind: 'config' });
  if (attributes) throw inUse(address, attributes, config.cooldownSeconds);
  if (sameOwner(block.owner, demand.owner)) {
    const isConfirmed = view.affinity(demand.owner, block.prefix)?.state === 'confirmed';
    const confirmation = isConfirmed ? [] : [confirm(demand.owner, block.prefix)];
    const rules = block === stored ? [expectPool(pool)] : expectRules(search, pool);
    return { block, pool, origin: 'own', changes: [...rules, ...confirmation] };
  }
  if (!block.owner && usedCount(block) === 0) return takeoverOffer(search, { block, pool });
  if (config.strictAffinity) throw strictRefusal(address, block, demand);
  return { block, pool, origin: 'borrowed', changes: expectRules(search, pool) };
}

function newOffer(search: Search, pool: Pool, address: Address): Offer {
  const prefix = prefixOf(address, pool.blockSizeBits);
  const across = takenAcross(search.view, prefix);
  if (!across) return claimOffer(search, { pool, prefix });
  const text = `${formatAddress(address)} would need block ${formatPrefix(prefix)}, and ${formatPrefix(across)}, which a former pool left, lies in it; release the addresses of that one`;
  throw refused(address, text);
}

function strictRefusal(address: Address, { prefix, owner }: Block, { owner: asking }: Demand): Failure {
  const whose = owner ? `belongs to ${owner.name}` : 'has no owner';
  const text = `${formatAddress(address)} is in block ${formatPrefix(prefix)}, which ${whose}, and affinity is strict: ${asking.name} takes addresses of its own blocks alone`;
  return refused(address, text);
}

function refused(address: Address, text: string): Failure {
  return new Failure('ADDRESS_REFUSED', text, { details: { address: formatAddress(address) } });
}

/** @param cooldownSeconds - that is in force */
function inUse(address: Address, attributes: AllocationAttributes, cooldownSeconds: number): Failure {
  const text = formatAddress(address);
  const { handleId, owner, releasedAtMs } = attributes;
  if (releasedAtMs !== undefined) {
    const freeAt = new Date(releasedAtMs + cooldownSeconds * 1000).toISOString();
    const message = `${text} cools down after its release, until ${freeAt}; ask again then, or for another address`;
    return new Failure('ADDRESS_IN_USE', message, { details: { address: text, freeAt } });
  }
  const pod = owner.pod === undefined ? '' : `, pod ${owner.namespace ?? ''}/${owner.pod}`;
  const node = owner.node === undefined ? '' : ` on node ${owner.node}`;
  const message = `${text} is held by handle ${handleId ?? 'unknown'}${pod}${node}; release it there, or ask for another address`;
  return new Failure('ADDRESS_IN_USE', message, { details: { address: text, handle: handleId ?? '' } });
}
