import { formatAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, ordinalOf, prefixContains, prefixOf } from '@podwire/shared/net/prefix';

import type { Demand } from '../blocks/demand.js';
import { handleChanges } from '../blocks/holding.js';
import { blockOf, overlappingRange } from '../blocks/lookup.js';
import { beginSearch, claimOffer, expectPool } from '../blocks/search.js';
import type { AllocationAttributes } from '../records/attributes.js';
import { attributesAt, isHeld, releaseAddresses, takeOrdinals, type Block } from '../records/block.js';
import { leaseAttributes, leaseHandle } from '../records/lease.js';
import type { NodeSession } from '../records/session.js';
import type { Change, View } from '../records/view.js';

/** Leases that a node has again. */
interface RetakenLeases {
  readonly changes: readonly Change[];
  /** The changed blocks, which the changes write. */
  readonly blocks: readonly Block[];
  /** Those that another holder got meanwhile. */
  readonly lost: readonly Address[];
}

/** Allocates leases of a session again that another tool released. */
export function retakeLeases(
  view: View,
  { name: nodeName, bootId }: Pick<NodeSession, 'name' | 'bootId'>,
  addresses: readonly Address[],
  nowMs: number,
): RetakenLeases {
  const attributes = leaseAttributes({ nodeName, bootId, nowMs });
  const taken = new Reallocation(view, { nodeName, nowMs });
  const lost = addresses.filter((address) => taken.take(address, attributes) !== undefined);
  const { blocks } = taken;
  const handleId = leaseHandle(nodeName);
  const changes: Change[] = [
    ...taken.changes,
    ...blocks.map((value): Change => ({ type: 'put', record: { kind: 'block', value } })),
    ...(blocks.length > 0 ? handleChanges(view, handleId, blocks) : []),
    { type: 'expectUnreleased', handleId },
  ];
  return { changes, blocks, lost };
}

/**
 * Allocates certain addresses that are free or cool down: a node has them although the datastore lost their allocations,
 * because another tool released them or the datastore was restored. Reservations, selectors, disabled pools and strict
 * affinity do not matter, since the node has the address already.
 */
export class Reallocation {
  readonly #view: View;
  readonly #nodeName: string;
  readonly #nowMs: number;
  /** By their prefixes: blocks with the addresses taken so far. */
  readonly #blocks = new Map<string, Block>();
  readonly #changes: Change[] = [];

  constructor(view: View, { nodeName, nowMs }: { readonly nodeName: string; readonly nowMs: number }) {
    this.#view = view;
    this.#nodeName = nodeName;
    this.#nowMs = nowMs;
  }

  /** The changed blocks. */
  get blocks(): readonly Block[] {
    return [...this.#blocks.values()];
  }

  /** Everything but the changed blocks and the handle. */
  get changes(): readonly Change[] {
    return this.#changes;
  }

  /**
   * @returns why the address cannot be allocated; undefined if it was
   * @throws Failure STORE_CORRUPT when its block cannot be read
   */
  take(address: Address, attributes: AllocationAttributes): string | undefined {
    const text = formatAddress(address);
    const pool = this.#view.pools().find(({ prefix }) => prefixContains(prefix, address));
    if (!pool) return `${text} is in no pool`;
    const lessee = this.#view.lessee(address);
    if (lessee !== undefined && lessee !== this.#nodeName) return `${text} belongs to node ${lessee}`;
    const stored = blockOf(this.#view, address);
    if (stored) {
      this.#changes.push(expectPool(pool));
      return this.#takeFrom(this.#blocks.get(formatPrefix(stored.prefix)) ?? stored, address, attributes);
    }
    const prefix = prefixOf(hostPrefix(address), pool.blockSizeBits);
    const known = this.#blocks.get(formatPrefix(prefix));
    if (known) return this.#takeFrom(known, address, attributes);
    const across = overlappingRange(this.#view, prefix);
    if (across) return `${text} needs a block that overlaps block ${formatPrefix(across)} of a former pool`;
    const { block, changes } = claimOffer(beginSearch(this.#view, this.#demand(address), [pool]), pool, prefix);
    this.#changes.push(...changes);
    return this.#takeFrom(block, address, attributes);
  }

  #takeFrom(block: Block, address: Address, attributes: AllocationAttributes): string | undefined {
    const ordinal = ordinalOf(block.prefix, address);
    const current = attributesAt(block, ordinal);
    if (current && isHeld(current)) return `${formatAddress(address)} has another holder`;
    const free = current ? releaseAddresses(block, [ordinal]) : block;
    this.#blocks.set(formatPrefix(block.prefix), takeOrdinals(free, [ordinal], attributes));
    return undefined;
  }

  #demand({ family }: Address): Demand {
    const owner = { kind: 'host', name: this.#nodeName } as const;
    const none = { nodeLabels: {}, namespaceLabels: {}, pools: [], maxBlocksCount: 0, seed: '' };
    return { family, use: 'Workload', owner, ...none, nowMs: this.#nowMs };
  }
}
