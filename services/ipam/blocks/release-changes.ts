import { formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { removeAffinity } from '../records/absence.js';
import type { AllocationAttributes } from '../records/attributes.js';
import { BLOCK_BYTES_PER_STEP, blockBytes, isIdle } from '../records/block-stats.js';
import {
  collectCooled,
  coolAddresses,
  heldAddressesIn,
  isUnneeded,
  allocateAnew,
  releaseAddresses,
  returnUnused,
  touchBlock,
  type Affinity,
  type Block,
  type HeldAddress,
} from '../records/block.js';
import { DEFAULT_CONFIG } from '../records/config.js';
import { historyEntry, type HistoryEntry } from '../records/history.js';
import { isLease } from '../records/lease.js';
import { deselects, unavailableReason, poolOf, type Pool } from '../records/pool.js';
import type { Change, Decision, View } from '../records/view.js';
import { EndpointEdits, restoreOperations, type ReleaseTarget } from './endpoint-edits.js';
import { addressOf } from '../records/block.js';
import { handleChanges, handleOperations } from '../records/handle-counts.js';

/** An allocation to end. */
export interface EndingAllocation extends HeldAddress {
  /** The entry of the history. Default: the holder's, which ends now; none for an unbound lease. */
  readonly entry?: HistoryEntry | undefined;
  /** Whether no container had the address, so that it is the next one to use. Default: false. */
  readonly isUnused?: boolean | undefined;
  /** The attributes that the address has from now on, as a new allocation. Default: it is freed. */
  readonly successor?: AllocationAttributes | undefined;
}

/**
 * The changes that release addresses.
 * @param held - as in the view, without duplicates; few enough for one transaction, see {@link nextBatch}
 */
export function releaseHeld(view: View, held: readonly EndingAllocation[], nowMs: number): Change[] {
  return [...blockChanges(view, held, nowMs), ...new EndpointEdits(view, held).changes()];
}

interface HolderRelease {
  readonly target: ReleaseTarget;
  /** All addresses that the target holds. */
  readonly held: readonly HeldAddress[];
  readonly nowMs: number;
}

/**
 * Releases all addresses of an attachment or a handle, and removes its endpoints, including endpoints with addresses
 * it no longer holds.
 */
export function releaseHolder(view: View, { target: ending, held, nowMs }: HolderRelease): Change[] {
  return [...blockChanges(view, held, nowMs), ...new EndpointEdits(view, held).removeAll(ending).changes()];
}

function blockChanges(view: View, held: readonly EndingAllocation[], nowMs: number): Change[] {
  if (held.length === 0) return [];
  const config = view.config() ?? DEFAULT_CONFIG;
  const { cooldownSeconds } = config;
  const left = groupByBlock(held).map(({ block, ending }) => {
    const collected = collectCooled(block, nowMs, cooldownSeconds);
    return endAllocations(collected, ending, { nowMs, cooldownSeconds });
  });
  return [
    ...storeOrRemoveBlocks(view, { blocks: left, ended: held, nowMs }),
    { type: 'expect', record: { kind: 'config', value: config } },
  ];
}

interface CoolDown {
  readonly nowMs: number;
  readonly cooldownSeconds: number;
}

function endAllocations(
  block: Block,
  ending: readonly EndingAllocation[],
  { nowMs, cooldownSeconds }: CoolDown,
): Block {
  const ordinalsOf = (wanted: boolean) =>
    ending.filter(({ isUnused = false, successor }) => isUnused === wanted && !successor).map(({ ordinal }) => ordinal);
  const [used, unused] = [ordinalsOf(false), ordinalsOf(true)];
  const release = cooldownSeconds > 0 ? coolAddresses : releaseAddresses;
  const kept = ending.reduce(
    (changed, { ordinal, successor }) => (successor ? allocateAnew(changed, ordinal, successor) : changed),
    block,
  );
  const released = used.length > 0 ? release(kept, used, nowMs) : kept;
  const left = unused.length > 0 ? returnUnused(released, unused) : released;
  // Another node may reclaim a block without a claim time at once.
  return used.length === 0 && isIdle(left) ? { ...left, claimTimeMs: undefined } : left;
}

interface ChangedBlocks {
  /** The changed blocks, before the decision whether to keep or remove them. */
  readonly blocks: readonly Block[];
  /** The allocations that end, as they were before. */
  readonly ended: readonly EndingAllocation[];
  readonly nowMs: number;
}

/** Stores changed blocks, or removes unneeded ones with their affinities; updates handles and history. */
function storeOrRemoveBlocks(view: View, { blocks, ended, nowMs }: ChangedBlocks): Change[] {
  const evaluated = blocks.map((block) => ({ block, reasons: removalConditions(view, block) }));
  const removed = evaluated.flatMap(({ block, reasons }) => (reasons ? [block] : []));
  const kept = evaluated.flatMap(({ block, reasons }) => (reasons ? [] : [block]));
  return [
    ...kept.map((value): Change => ({ type: 'put', record: { kind: 'block', value } })),
    ...evaluated.flatMap(({ reasons }) => reasons ?? []),
    ...poolsEmptiedBy(view, removed).map(removePool),
    ...removeBlocks(view, { blocks: removed, kept, ended, nowMs }),
  ];
}

/**
 * Whether to remove a block: it holds no address, and no allocation would use it.
 * @returns the comparisons that this depends on besides the block; undefined to keep the block
 */
function removalConditions(view: View, block: Block): Change[] | undefined {
  if (!isUnneeded(block)) return undefined;
  const pool = poolOf(view.pools(), block.prefix);
  if (!block.owner || !pool) return [];
  const expectPool: Change = { type: 'expect', record: { kind: 'pool', value: pool } };
  if (pool.deletionTimeMs !== undefined) return [expectPool];
  const node = block.owner.kind === 'host' ? view.node(block.owner.name) : undefined;
  if (!node || unavailableReason(pool) !== undefined || !deselects(pool, node.labels)) return undefined;
  return [expectPool, { type: 'expect', record: { kind: 'node', value: node } }];
}

interface Removal extends ChangedBlocks {
  /** Other blocks that the same decision changes, in their new state. */
  readonly kept: readonly Block[];
}

/**
 * Removes blocks that are {@link isUnneeded} with their affinities. Their addresses reserved by Windows end with them.
 */
export function removeBlocks(view: View, { blocks, kept, ended, nowMs }: Removal): Change[] {
  const reserved = blocks.flatMap((block) => heldAddressesIn(block, () => true));
  const allEnded: EndingAllocation[] = [...ended, ...reserved];
  const emptied = blocks.map((block) => ({ ...block, allocations: block.allocations.map(() => null), attributes: [] }));
  const ids = new Set(
    allEnded.flatMap(({ attributes, successor }) =>
      [attributes.handleId, successor?.handleId].flatMap((id) => id ?? []),
    ),
  );
  return [
    ...blocks.flatMap((block) => removal(view, block)),
    ...[...ids].flatMap((id) => handleChanges(view, id, [...kept, ...emptied])),
    ...allEnded.flatMap((address) => logOf(address, nowMs)),
  ];
}

/** No container is known to have had an unbound lease. */
function logOf({ entry, ...held }: EndingAllocation, nowMs: number): Change[] {
  if (entry) return [{ type: 'log', entry }];
  return isLease(held.attributes) ? [] : [{ type: 'log', entry: historyEntry(held, nowMs) }];
}

function removal(view: View, block: Block): Change[] {
  const { owner, prefix } = block;
  return [
    { type: 'delete', record: { kind: 'block', value: block } },
    ...(owner ? removeAffinity(view, owner, prefix) : []),
  ];
}

interface EndingInBlock {
  readonly block: Block;
  readonly ending: readonly EndingAllocation[];
}

function groupByBlock(held: readonly EndingAllocation[]): EndingInBlock[] {
  const shares = new Map<string, EndingInBlock>();
  for (const each of held) {
    const cidr = formatPrefix(each.block.prefix);
    shares.set(cidr, { block: each.block, ending: [...(shares.get(cidr)?.ending ?? []), each] });
  }
  return [...shares.values()];
}

/** Maximum operations of a transaction, below the 128 that etcd allows. */
export const OPERATIONS_PER_STEP = 120;
/** Operations for a block, its affinity, its pool and its node. */
const OPERATIONS_PER_BLOCK = 4;
/** Operations for an endpoint and an entry of the history. */
const OPERATIONS_PER_ADDRESS = 2;

/** The first addresses, as many as one transaction can release, at least one. */
export function nextBatch<Held extends HeldAddress & Pick<EndingAllocation, 'successor'>>(
  view: View,
  candidates: Iterable<Held>,
): Held[] {
  const batch: Held[] = [];
  const seen = new Set<string>();
  let [operations, bytes] = [0, 0];
  for (const address of candidates) {
    const { block, attributes, successor } = address;
    const cidr = `block ${formatPrefix(block.prefix)}`;
    const handles = [attributes.handleId, successor?.handleId].flatMap((id) => id ?? []);
    if (!seen.has(cidr)) {
      operations += OPERATIONS_PER_BLOCK;
      bytes += blockBytes(block);
    }
    for (const id of handles) if (!seen.has(`handle ${id}`)) operations += handleOperations(view.handle(id));
    operations += OPERATIONS_PER_ADDRESS + restoreOperations(view, attributes);
    const isOver = operations > OPERATIONS_PER_STEP || bytes > BLOCK_BYTES_PER_STEP;
    if (batch.length > 0 && isOver) break;
    batch.push(address);
    for (const name of [cidr, ...handles.map((id) => `handle ${id}`)]) seen.add(name);
  }
  return batch;
}

interface CooledBlockInput {
  /** May be from another view. */
  readonly block: Block;
  readonly nowMs: number;
}

/**
 * Frees the addresses of a block whose cool-down is over. Allocations and releases do the same for their own block;
 * this serves the remaining blocks. Removes the block if it becomes unneeded.
 * @returns whether anything changed
 */
export function collectCooledBlock(view: View, { block: { prefix }, nowMs }: CooledBlockInput): Decision<boolean> {
  const config = view.config() ?? DEFAULT_CONFIG;
  const block = view.block(prefix);
  const collected = block && collectCooled(block, nowMs, config.cooldownSeconds);
  if (!collected || collected === block) return { changes: [], outcome: false };
  return {
    changes: [
      ...storeOrRemoveBlocks(view, { blocks: [touchBlock(collected)], ended: [], nowMs }),
      { type: 'expect', record: { kind: 'config', value: config } },
    ],
    outcome: true,
  };
}

/**
 * How a pool that is being deleted ends: the release of a block's last address removes the block, and the release of
 * the last block removes the pool, in the same transaction. The steps of the deletion remove the rest and repeat while
 * such pools exist. The rest is: two concurrent releases of the last two blocks, which do not see each other; cooling
 * addresses; blocks of an older version.
 */

/**
 * The pools that are being deleted and become empty with the removal of these blocks. They are removed in the same
 * transaction. If emptiness is not certain, the pool is left to a later step.
 */
export function poolsEmptiedBy(view: View, removed: readonly Block[]): Pool[] {
  if (removed.length === 0) return [];
  return view
    .pools()
    .filter(
      (pool) =>
        pool.deletionTimeMs !== undefined &&
        removed.some(({ prefix }) => prefixContains(pool.prefix, prefix)) &&
        view.showsAllBefore({ kind: 'pool', value: pool }) &&
        isEmptied(view, pool, removed),
    );
}

function isEmptied(view: View, pool: Pool, removed: readonly Block[]): boolean {
  const values = new Set(removed.map(({ prefix }) => prefix.value));
  if (view.unreadableBlock(pool.prefix)) return false;
  for (const { prefix } of view.blocksIn(pool.prefix)) if (!values.has(prefix.value)) return false;
  return orphanedAffinities(view, pool, removed).length === 0;
}

/** Affinities within a pool that are not removed with these blocks: unfinished claims of other writers. */
export function orphanedAffinities(view: View, pool: Pool, removed: readonly Block[]): Affinity[] {
  const owned = new Set(removed.flatMap(({ owner, prefix }) => (owner ? [affinityId({ owner, block: prefix })] : [])));
  return [...view.affinities()].filter(
    (affinity) => prefixContains(pool.prefix, affinity.block) && !owned.has(affinityId(affinity)),
  );
}

function affinityId({ owner, block }: Pick<Affinity, 'owner' | 'block'>): string {
  return `${owner.kind}:${owner.name} ${block.family}/${block.value}/${block.length}`;
}

export function removePool(value: Pool): Change {
  return { type: 'delete', record: { kind: 'pool', value } };
}

/** The result of one step of a release in several transactions. */
export interface ReleaseStep {
  /** `done` when nothing was left and this step changed nothing; otherwise run another step. */
  readonly state: 'more' | 'done';
  /** The addresses that the step released, of full length. */
  readonly addresses: readonly Prefix[];
}

export function releaseStep(held: readonly HeldAddress[], changes: readonly Change[]): Decision<ReleaseStep> {
  const state = changes.length > 0 ? 'more' : 'done';
  return { changes, outcome: { state, addresses: held.map(addressOf) } };
}
