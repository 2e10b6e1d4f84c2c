import { formatPrefix } from '@podwire/shared/net/prefix';

import { BLOCK_BYTES_PER_STEP, blockBytes } from '../allocator/block-bytes.js';
import { poolsEmptiedBy, removePool } from '../allocator/drain-pool.js';
import type { AllocationAttributes, Block, Node, Pool } from '../allocator/records.js';
import { outOfUse, poolOf } from '../pools/pools.js';
import { expectNoAffinity } from '../records/absence.js';
import { attributesAt, collectCold, coolAddresses, ordinalsWhere, releaseAddresses } from '../records/block.js';
import { historyEntry } from '../records/history.js';
import type { Change, View } from '../records/view.js';
import { matches } from '../selectors/selector.js';
import { DEFAULT_CONFIG } from './demand.js';
import { EndpointEdits, putBackOperations, type Ending } from './endpoint-edits.js';
import { handleChanges, handleOperations, type HeldAddress } from './holding.js';

/**
 * What every release has in common, whoever asks for it: the addresses go back to their blocks, or begin to cool down; their
 * handles and endpoints lose them, the history tells of them, and a block that nobody needs any more goes, all at once.
 */

/** Handle of the addresses that Windows keeps for itself in each block, in any case (Calico's libcalico-go/lib/ipam). */
const WINDOWS_RESERVED = 'windows-reserved-ipam-handle';

/** The addresses of a block that somebody holds and whose attributes are as asked, in their order. Not those that cool down. */
export function heldIn(block: Block, wanted: (attributes: AllocationAttributes) => boolean): HeldAddress[] {
  return ordinalsWhere(block, (attributes) => isHeld(attributes) && wanted(attributes)).flatMap((ordinal) => {
    const attributes = attributesAt(block, ordinal);
    return attributes ? [{ block, ordinal, attributes }] : [];
  });
}

/** Whether attributes are a holder's, and not those of an address that cools down after its release. */
export function isHeld({ releasedAtMs }: AllocationAttributes): boolean {
  return releasedAtMs === undefined;
}

/**
 * Whether no address keeps a block: all are free, or kept by Windows for itself. One that cools down keeps its block, since a block
 * made anew would know nothing of it.
 */
export function isUnneeded({ attributes }: Block): boolean {
  return attributes.every((entry) => isHeld(entry) && entry.handleId?.toLowerCase() === WINDOWS_RESERVED);
}

/**
 * The changes that give addresses back.
 * @param held - as the view shows them, none twice; few enough for one transaction, see {@link nextBatch}
 */
export function giveBack(view: View, held: readonly HeldAddress[], nowMs: number): Change[] {
  return [...blockChanges(view, held, nowMs), ...new EndpointEdits(view, held).changes()];
}

interface EndedHolder {
  readonly ending: Ending;
  /** All that it holds. */
  readonly held: readonly HeldAddress[];
  readonly nowMs: number;
}

/** The same where an attachment or a handle ends: its endpoints go, also those that name addresses which it holds no more. */
export function endHolder(view: View, { ending, held, nowMs }: EndedHolder): Change[] {
  return [...blockChanges(view, held, nowMs), ...new EndpointEdits(view, held).end(ending).changes()];
}

function blockChanges(view: View, held: readonly HeldAddress[], nowMs: number): Change[] {
  if (held.length === 0) return [];
  const config = view.config() ?? DEFAULT_CONFIG;
  const { cooldownSeconds } = config;
  const left = byBlock(held).map(({ block, ordinals }) => {
    const collected = collectCold(block, nowMs, cooldownSeconds);
    return cooldownSeconds > 0 ? coolAddresses(collected, ordinals, nowMs) : releaseAddresses(collected, ordinals);
  });
  return [
    ...settleBlocks(view, { blocks: left, ended: held, nowMs }),
    { type: 'expect', record: { kind: 'config', value: config } },
  ];
}

interface Settling {
  /** Blocks as they are to be, before it is asked whether they are to be at all. */
  readonly blocks: readonly Block[];
  /** Allocations that end by it, as they were. */
  readonly ended: readonly HeldAddress[];
  readonly nowMs: number;
}

/** Stores changed blocks, or removes those that nobody needs, with their affinities; handles and history follow. */
export function settleBlocks(view: View, { blocks, ended, nowMs }: Settling): Change[] {
  const judged = blocks.map((block) => ({ block, reasons: reasonsToGo(view, block) }));
  const removed = judged.flatMap(({ block, reasons }) => (reasons ? [block] : []));
  const kept = judged.flatMap(({ block, reasons }) => (reasons ? [] : [block]));
  return [
    ...kept.map((value): Change => ({ type: 'put', record: { kind: 'block', value } })),
    ...judged.flatMap(({ reasons }) => reasons ?? []),
    ...poolsEmptiedBy(view, removed).map(removePool),
    ...removeBlocks(view, { blocks: removed, kept, ended, nowMs }),
  ];
}

/**
 * Whether a block is to go: nothing is in it, and no allocation would come from it.
 * @returns what that rests on besides the block; undefined when it is to stay
 */
function reasonsToGo(view: View, block: Block): Change[] | undefined {
  if (!isUnneeded(block)) return undefined;
  const pool = poolOf(view.pools(), block.prefix);
  if (!block.owner || !pool) return [];
  const expectPool: Change = { type: 'expect', record: { kind: 'pool', value: pool } };
  if (pool.deletionTimeMs !== undefined) return [expectPool];
  const node = block.owner.kind === 'host' ? view.node(block.owner.name) : undefined;
  if (!node || outOfUse(pool) !== undefined || !isShunned(pool, node)) return undefined;
  return [expectPool, { type: 'expect', record: { kind: 'node', value: node } }];
}

/** Whether a pool is meant for other nodes. A selector that cannot be read tells nothing. */
function isShunned({ nodeSelector }: Pool, { labels }: Node): boolean {
  const { matches: isSelected, fault } = matches(nodeSelector, labels);
  return !isSelected && fault === undefined;
}

interface Removal extends Settling {
  /** Other blocks that the same decision changes, as they are to be. */
  readonly kept: readonly Block[];
}

/** Removes blocks that are {@link isUnneeded} with their affinities; what Windows kept in them ends with them. */
export function removeBlocks(view: View, { blocks, kept, ended, nowMs }: Removal): Change[] {
  const reserved = blocks.flatMap((block) => heldIn(block, () => true));
  const allEnded = [...ended, ...reserved];
  const emptied = blocks.map((block) => ({ ...block, allocations: block.allocations.map(() => null), attributes: [] }));
  const ids = new Set(allEnded.flatMap(({ attributes: { handleId } }) => (handleId === undefined ? [] : [handleId])));
  return [
    ...blocks.flatMap((block) => removal(view, block)),
    ...[...ids].flatMap((id) => handleChanges(view, id, [...kept, ...emptied])),
    ...allEnded.map((address): Change => ({ type: 'log', entry: historyEntry(address, nowMs) })),
  ];
}

function removal(view: View, block: Block): Change[] {
  const affinity = block.owner && view.affinity(block.owner, block.prefix);
  return [
    { type: 'delete', record: { kind: 'block', value: block } },
    ...(affinity
      ? ([{ type: 'delete', record: { kind: 'affinity', value: affinity } }] as const)
      : expectNone(view, block)),
  ];
}

function expectNone(view: View, { owner, prefix }: Block): Change[] {
  return owner ? expectNoAffinity(view, owner, prefix) : [];
}

interface BlockShare {
  readonly block: Block;
  readonly ordinals: readonly number[];
}

function byBlock(held: readonly HeldAddress[]): BlockShare[] {
  const shares = new Map<string, BlockShare>();
  for (const { block, ordinal } of held) {
    const cidr = formatPrefix(block.prefix);
    shares.set(cidr, { block, ordinals: [...(shares.get(cidr)?.ordinals ?? []), ordinal] });
  }
  return [...shares.values()];
}

/** What a transaction may come to at most, of the 128 operations that etcd allows. */
export const OPERATIONS_PER_STEP = 120;
/** A block with its affinity, its pool and its node. */
const OPERATIONS_PER_BLOCK = 4;
/** An endpoint, and an entry of the history. */
const OPERATIONS_PER_ADDRESS = 2;

/** As many of the addresses as one transaction can give back, at least one of them. */
export function nextBatch(view: View, candidates: Iterable<HeldAddress>): HeldAddress[] {
  const batch: HeldAddress[] = [];
  const seen = new Set<string>();
  let [operations, bytes] = [0, 0];
  for (const address of candidates) {
    const { block, attributes } = address;
    const cidr = `block ${formatPrefix(block.prefix)}`;
    const handle = `handle ${attributes.handleId}`;
    if (!seen.has(cidr)) {
      operations += OPERATIONS_PER_BLOCK;
      bytes += blockBytes(block);
    }
    if (!seen.has(handle)) operations += handleOperations(view.handle(attributes.handleId ?? ''));
    operations += OPERATIONS_PER_ADDRESS + putBackOperations(view, attributes);
    const isOver = operations > OPERATIONS_PER_STEP || bytes > BLOCK_BYTES_PER_STEP;
    if (batch.length > 0 && isOver) break;
    batch.push(address);
    seen.add(cidr).add(handle);
  }
  return batch;
}
