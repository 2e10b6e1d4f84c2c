import { parsePrefix } from '@podwire/shared/net/prefix';

import { addressOf, blocksOf, isCountedAnew, requireKnown, type HeldAddress } from '../blocks/holding.js';
import { allBlocks } from '../blocks/lookup.js';
import { endHolder, giveBack, heldIn, nextBatch } from '../blocks/release-changes.js';
import { expectNoBlock } from '../records/absence.js';
import type { Change, Decision, View } from '../records/view.js';
import { storedHandleNames } from './handle-name.js';
import type { Block, Handle } from './records.js';
import type { ReleaseStep } from './release-node.js';

export interface HandleRelease {
  readonly handleId: string;
  readonly nowMs: number;
  /**
   * Whether to look through every block instead of those that the handle's record names: for addresses whose handle was lost,
   * at the cost of looking at all that is allocated.
   */
  readonly searchesAllBlocks: boolean;
}

/** Entries of a handle that are taken out in one step: each block is one to compare. */
const ENTRIES_PER_STEP = 100;

/**
 * Gives back every address of a handle, as much in each step as a transaction takes, and the handle itself, whatever it counts by
 * mistake: blocks that are gone, or addresses that it has not. The endpoints of its containers go, also those without an address.
 *
 * Idempotent; a handle that is not there has no addresses.
 * @throws Failure STORE_CORRUPT when the handle, or a block that it names, cannot be read
 */
export function continueHandleRelease(view: View, release: HandleRelease): Decision<ReleaseStep> {
  const { handleId, nowMs } = release;
  const mark: Change = { type: 'release', handleId, nowMs };
  for (const id of storedHandleNames(handleId)) requireKnown(view, id);
  const held = heldByHandle(view, release);
  const batch = nextBatch(view, held);
  const [first, ...others] = recordsOf(view, handleId);
  const end = (all: readonly HeldAddress[]): Change[] =>
    endHolder(view, { ending: { type: 'handle', handleId }, held: all, nowMs });
  if (held.length === 0) {
    const isLast = others.length === 0 && (first?.blocks.size ?? 0) <= ENTRIES_PER_STEP;
    const changes = [...(first ? takeOutEntries(view, first) : []), ...(isLast ? end([]) : []), mark];
    return { changes, outcome: { state: isLast ? 'done' : 'more', addresses: [] } };
  }
  const isRight = !first || (first.id === handleId && isCountedAnew(first));
  const isWhole = batch.length === held.length && others.length === 0 && isRight;
  return {
    changes: [...(isWhole ? end(held) : giveBack(view, batch, nowMs)), mark],
    outcome: { state: isWhole ? 'done' : 'more', addresses: batch.map(addressOf) },
  };
}

/** The records under all the names that a handle may have. */
function recordsOf(view: View, handleId: string): Handle[] {
  return storedHandleNames(handleId).flatMap((id) => view.handle(id) ?? []);
}

/** The handle without some of the blocks in which it has nothing, provided that this is so. */
function takeOutEntries(view: View, handle: Handle): Change[] {
  const entries = [...handle.blocks];
  const left = new Map(entries.slice(ENTRIES_PER_STEP));
  return [
    ...entries.slice(0, ENTRIES_PER_STEP).flatMap(([cidr]) => expectAsSeen(view, cidr)),
    { type: left.size > 0 ? 'put' : 'delete', record: { kind: 'handle', value: { ...handle, blocks: left } } },
  ];
}

function expectAsSeen(view: View, cidr: string): Change[] {
  const parsed = parsePrefix(cidr);
  if (!parsed.ok) return [];
  const value = view.block(parsed.prefix);
  return [value ? { type: 'expect', record: { kind: 'block', value } } : expectNoBlock(parsed.prefix)];
}

/** The addresses of a handle, in the order of its blocks. */
export function heldByHandle(view: View, { handleId, searchesAllBlocks }: Omit<HandleRelease, 'nowMs'>): HeldAddress[] {
  const blocks = searchesAllBlocks ? [...allBlocks(view)] : namedBlocks(view, handleId);
  return blocks.flatMap((block) => heldIn(block, (attributes) => attributes.handleId === handleId));
}

function namedBlocks(view: View, handleId: string): Block[] {
  return [...new Set(recordsOf(view, handleId).flatMap((handle) => blocksOf(view, handle)))];
}
