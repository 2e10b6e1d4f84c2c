import { formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';

import { cannotRead, expectBlock, requireReadable } from './absence.js';
import { ordinalsWhere, type Block, type Handle } from './block.js';
import type { Change, View } from './view.js';

/** A handle's numbers of addresses in each block. The blocks decide; the handle follows them. */

/**
 * Precondition of decisions that depend on all addresses of a handle.
 * @returns the handle
 * @throws Failure STORE_CORRUPT when the handle, or a block that it names, cannot be read
 */
export function requireHandleReadable(view: View, id: string): Handle | undefined {
  requireReadable(view, { kind: 'handle', id });
  const handle = view.handle(id);
  if (!handle) return undefined;
  for (const cidr of handle.blocks.keys()) {
    const parsed = parsePrefix(cidr);
    if (parsed.ok) requireReadable(view, { kind: 'block', prefix: parsed.prefix });
  }
  return handle;
}

/** The blocks that a handle names and that exist. */
export function blocksOf(view: View, handle: Handle | undefined): Block[] {
  return [...(handle?.blocks.keys() ?? [])].flatMap((cidr) => {
    const parsed = parsePrefix(cidr);
    const block = parsed.ok ? view.block(parsed.prefix) : undefined;
    return block ? [block] : [];
  });
}

/** A handle with more blocks is only adjusted, not recounted: the transaction compares every counted block. */
const MAX_COUNTED_BLOCKS = 16;

/** Maximum number of operations of {@link handleChanges}. */
export function handleOperations(handle: Handle | undefined): number {
  return 1 + Math.min(handle?.blocks.size ?? 0, MAX_COUNTED_BLOCKS);
}

/** Whether {@link handleChanges} recounts the whole handle, not only the changed blocks. */
export function isRecounted({ blocks }: Handle): boolean {
  return blocks.size <= MAX_COUNTED_BLOCKS;
}

/**
 * The changes that make a handle match the blocks once `changed` are stored. It recounts, so wrong counts of other
 * writers are corrected with the next change; blocks that are only counted must be unchanged at the commit. The counts
 * of a handle in more than {@link MAX_COUNTED_BLOCKS} other blocks stay as they are.
 * @returns only a comparison when the handle is already right
 */
export function handleChanges(view: View, id: string, changed: readonly Block[]): Change[] {
  const stored = view.handle(id);
  const shares = stored ? otherCounts(view, stored, changed) : [];
  const counts = new Map<string, number>();
  for (const { cidr, count } of shares) if (count > 0) counts.set(cidr, count);
  countPerBlock(changed, id, counts);
  const put: Change = { type: 'put', record: { kind: 'handle', value: { id, blocks: counts } } };
  if (sameCounts(stored?.blocks, counts)) return changed.length > 0 ? dependOnHandle(view, id, put) : [];
  const changes = shares.flatMap(({ expected }) => expected);
  if (counts.size > 0) changes.push(put);
  else if (stored) changes.push({ type: 'delete', record: { kind: 'handle', value: stored } });
  return changes;
}

/** The number of a handle's addresses in a block, with the comparison that it depends on. */
interface HandleCount {
  readonly cidr: string;
  readonly count: number;
  readonly expected: readonly Change[];
}

/** The handle's counts in unchanged blocks. */
function otherCounts(view: View, { id, blocks }: Handle, changed: readonly Block[]): HandleCount[] {
  const cidrs = new Set(changed.map(({ prefix }) => formatPrefix(prefix)));
  const remaining = [...blocks].filter(([cidr]) => !cidrs.has(cidr));
  const isCounted = remaining.length <= MAX_COUNTED_BLOCKS;
  return remaining.map(([cidr, count]): HandleCount => {
    return isCounted ? recountBlock(view, id, { cidr, count }) : { cidr, count, expected: [] };
  });
}

/** Keeps the count of an unreadable block. Compares that a missing block is still missing. */
function recountBlock(view: View, id: string, { cidr, count }: Omit<HandleCount, 'expected'>): HandleCount {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) return { cidr, count: 0, expected: [] };
  const { prefix } = parsed;
  const block = view.block(prefix);
  const kept = cannotRead(view, { kind: 'block', prefix }) ? count : 0;
  return { cidr, count: block ? countIn(block, id) : kept, expected: expectBlock(view, prefix) };
}

/**
 * The changed blocks depend on a handle even if it needs no change. A handle that is right because of leftover counts
 * is written anyway, so that a concurrent removal loses its comparison; a missing handle must still be missing.
 */
function dependOnHandle(view: View, id: string, put: Change): Change[] {
  if (view.handle(id)) return [put];
  const value = { id, blocks: new Map<string, number>() };
  return cannotRead(view, { kind: 'handle', id }) ? [] : [{ type: 'expect', record: { kind: 'handle', value } }];
}

/** Adds the number of a handle's addresses in each block to the counts. */
function countPerBlock(blocks: readonly Block[], id: string, counts: Map<string, number>): void {
  for (const block of blocks) {
    const count = countIn(block, id);
    if (count > 0) counts.set(formatPrefix(block.prefix), count);
  }
}

function countIn(block: Block, id: string): number {
  return ordinalsWhere(block, (attributes) => attributes.handleId === id).length;
}

function sameCounts(stored: ReadonlyMap<string, number> | undefined, counts: ReadonlyMap<string, number>): boolean {
  if (!stored) return counts.size === 0;
  return stored.size === counts.size && [...stored].every(([cidr, count]) => counts.get(cidr) === count);
}
