import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, ordinalOf, prefixContains, prefixOf } from '@podwire/shared/net/prefix';

import type { Demand } from '../blocks/demand.js';
import { mayHaveLost } from '../blocks/epoch.js';
import { handleChanges } from '../records/handle-counts.js';
import { blockOf, overlappingBlock, overlappingRange } from '../blocks/lookup.js';
import { NodeShares, type ShareBudget } from '../blocks/node-shares.js';
import { beginSearch, claimOffer, expectPool } from '../blocks/search.js';
import type { AllocationAttributes } from '../records/attributes.js';
import {
  attributesAt,
  isHeld,
  makeBlock,
  releaseAddresses,
  sameOwner,
  takeOrdinals,
  type Block,
} from '../records/block.js';
import { leaseAttributes, leaseHandle } from '../records/lease.js';
import type { Pool } from '../records/pool.js';
import type { NodeSession } from '../records/session.js';
import type { Change, View } from '../records/view.js';

/** Leases that a node has again. */
interface RetakenLeases {
  readonly changes: readonly Change[];
  /** The changed blocks, which the changes write. */
  readonly blocks: readonly Block[];
  /** Addresses that another holder got meanwhile. */
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
 * affinity do not matter, since the node has the address already. The shares of other nodes limit addresses that are not
 * in the node's list.
 */
export class Reallocation {
  readonly #view: View;
  readonly #nodeName: string;
  readonly #nowMs: number;
  /** Blocks with the addresses taken so far, by prefix. */
  readonly #blocks = new Map<string, Block>();
  readonly #changes: Change[] = [];
  readonly #claims: AddressClaims;

  constructor(view: View, input: ClaimInput) {
    this.#view = view;
    this.#nodeName = input.nodeName;
    this.#nowMs = input.nowMs;
    this.#claims = new AddressClaims(view, input);
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
    const kept = lessee === undefined ? this.#claims.take(pool, address) : undefined;
    if (kept !== undefined) return `${text} is in pool "${pool.name}": ${kept}`;
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
    const demand = demandOf(this.#view, address.family, { nodeName: this.#nodeName, nowMs: this.#nowMs });
    const { block, changes } = claimOffer(beginSearch(this.#view, demand, [pool]), pool, prefix);
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
}

interface ClaimInput {
  readonly nodeName: string;
  readonly nowMs: number;
}

function demandOf(view: View, family: Family, { nodeName, nowMs }: ClaimInput): Demand {
  const owner = { kind: 'host', name: nodeName } as const;
  const nodeLabels = view.node(nodeName)?.labels ?? {};
  const none = { namespaceLabels: {}, pools: [], maxBlocksCount: 0, seed: '' };
  return { family, use: 'Workload', owner, nodeLabels, isLimitedToShare: true, ...none, nowMs };
}

interface ClaimLimit {
  readonly shares: NodeShares;
  readonly budget: ShareBudget;
  readonly taken: Set<string>;
}

/**
 * The free addresses that a node says it has. The shares of other nodes limit them, so that no node takes a pool by
 * naming its addresses. A node's own addresses fit, unless nodes joined since the pool became full. After a restore
 * nothing is limited: no address of a pod may go to another one.
 */
export class AddressClaims {
  readonly #view: View;
  readonly #input: ClaimInput;
  readonly #limits = new Map<Pool, readonly ClaimLimit[]>();

  constructor(view: View, input: ClaimInput) {
    this.#view = view;
    this.#input = input;
  }

  /** @returns why the node does not get a free address; undefined if it does */
  take(pool: Pool, address: Address): string | undefined {
    const { nodeName, nowMs } = this.#input;
    if (mayHaveLost(this.#view, nodeName)) return undefined;
    const owner = { kind: 'host', name: nodeName } as const;
    const stored = overlappingBlock(this.#view, hostPrefix(address));
    const prefix = stored?.prefix ?? prefixOf(hostPrefix(address), pool.blockSizeBits);
    const origin = sameOwner(stored?.owner, owner) ? 'own' : 'claimed';
    const offer = { block: stored ?? makeBlock({ prefix, owner, nowMs }), pool, origin };
    for (const { shares, budget, taken } of this.#limitsOf(pool)) {
      const name = shares.unit === 'block' ? formatPrefix(prefix) : formatAddress(address);
      if (taken.has(name) || !shares.counts(offer, address)) continue;
      if (budget.limitOf(offer) === 0) return shares.obstacle(pool)?.reason ?? 'no free address of it is left';
      budget.spend(offer, 1);
      taken.add(name);
    }
    return undefined;
  }

  /** Limits under strict affinity, where a node might name addresses in blocks of other nodes. */
  #limitsOf(pool: Pool): readonly ClaimLimit[] {
    const known = this.#limits.get(pool);
    if (known) return known;
    const search = beginSearch(this.#view, demandOf(this.#view, pool.prefix.family, this.#input), [pool]);
    const { config } = search;
    const modes = config.strictAffinity ? [true, false] : [false];
    const limits = modes.map((strictAffinity): ClaimLimit => {
      // A cooling address may be one that the node has: another tool released it.
      const shares = new NodeShares({ ...search, cooldownSeconds: 0, config: { ...config, strictAffinity } });
      return { shares, budget: shares.budget(), taken: new Set<string>() };
    });
    this.#limits.set(pool, limits);
    return limits;
  }
}
