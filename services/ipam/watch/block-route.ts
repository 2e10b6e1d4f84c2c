import { addressAt, type Prefix } from '@podwire/shared/net/prefix';
import type { Address } from '@podwire/shared/net/address';

import type { AllocationAttributes, Block } from '../allocator/records.js';

/** How packets reach the addresses of a block. Allocations of its owner's do not change it. */
export interface BlockRoute {
  readonly prefix: Prefix;
  /** Undefined when the pool was deleted. */
  readonly poolName: string | undefined;
  /** Undefined when no node owns the block. */
  readonly nodeName: string | undefined;
  /** What other nodes than the owner use, in the order of the addresses. */
  readonly borrowed: readonly BorrowedAddress[];
}

export interface BorrowedAddress {
  readonly address: Address;
  readonly nodeName: string;
}

const NONE: readonly BorrowedAddress[] = [];

/** What a block's record says of the ways to it. Addresses that tell no node, or cool down, are on no other node. */
export function blockRoute(block: Block, poolName: string | undefined): BlockRoute {
  const nodeName = block.owner?.kind === 'host' ? block.owner.name : undefined;
  return { prefix: block.prefix, poolName, nodeName, borrowed: borrowedOf(block, nodeName) };
}

/**
 * Whether a change of a block leaves its route as it is, which is easily told where only the owner uses the block.
 * @param route - made of the block as it was `before`
 * @param after - of the same owner, in the same pool
 */
export function keepsRoute(route: BlockRoute, before: Block, after: Block): boolean {
  const { borrowed, nodeName } = route;
  const isOthers = (one: AllocationAttributes, index: number): boolean =>
    one !== before.attributes[index] && borrowerOf(one, nodeName) !== undefined;
  return borrowed === NONE && !after.attributes.some(isOthers);
}

/** Looks at single addresses only where one of the few attributes, which addresses share, is another node's. */
function borrowedOf({ prefix, allocations, attributes }: Block, owner: string | undefined): readonly BorrowedAddress[] {
  if (!attributes.some((one) => borrowerOf(one, owner) !== undefined)) return NONE;
  return allocations.flatMap((index, ordinal): BorrowedAddress[] => {
    const used = index === null ? undefined : attributes[index];
    const nodeName = used && borrowerOf(used, owner);
    return nodeName === undefined ? [] : [{ address: addressAt(prefix, ordinal), nodeName }];
  });
}

function borrowerOf({ owner, releasedAtMs }: AllocationAttributes, blockOwner: string | undefined): string | undefined {
  const { node } = owner;
  return releasedAtMs !== undefined || node === undefined || node === '' || node === blockOwner ? undefined : node;
}

/** Whether two routes of one block say the same. */
export function sameBlockRoute(a: BlockRoute, b: BlockRoute): boolean {
  return (
    a.poolName === b.poolName &&
    a.nodeName === b.nodeName &&
    a.borrowed.length === b.borrowed.length &&
    a.borrowed.every(({ address, nodeName }, index) => {
      const other = b.borrowed[index];
      return address.value === other?.address.value && nodeName === other.nodeName;
    })
  );
}
