import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { comparePrefixes, formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';

import { belongsTo } from './attributes.js';
import { attributesAt, ordinalsWhere } from './block.js';
import type { AllocationAttributes, Block, Handle, Ordinal } from './records.js';
import type { Change, View } from './view.js';

/**
 * What an attachment holds. The blocks say it; the handle says in which blocks to look, and may name too many (Calico's does
 * after a crash), never too few. The endpoint does not say it: its name is the pod's, and the pod's next sandbox takes it.
 */

/** One address that an attachment holds. */
export interface HeldAddress {
  readonly block: Block;
  readonly ordinal: Ordinal;
  readonly attributes: AllocationAttributes;
}

/** The addresses of an attachment, IPv4 before IPv6. */
export function heldBy(view: View, attachment: Attachment): HeldAddress[] {
  const belongs = belongsTo(attachment);
  return blocksOf(view, view.handle(handleId(attachment)))
    .sort((a, b) => comparePrefixes(a.prefix, b.prefix))
    .flatMap((block) =>
      ordinalsWhere(block, belongs).flatMap((ordinal) => {
        const attributes = attributesAt(block, ordinal);
        return attributes ? [{ block, ordinal, attributes }] : [];
      }),
    );
}

/** The blocks that a handle names and that exist. */
export function blocksOf(view: View, handle: Handle | undefined): Block[] {
  return [...(handle?.blocks.keys() ?? [])].flatMap((cidr) => {
    const parsed = parsePrefix(cidr);
    const block = parsed.ok ? view.block(parsed.prefix) : undefined;
    return block ? [block] : [];
  });
}

/** A handle with more blocks than that is not counted anew, only changed: every block counted is one to compare. */
const MAX_COUNTED_BLOCKS = 16;

/** How many operations {@link handleChanges} takes at most. */
export function handleOperations(handle: Handle | undefined): number {
  return 1 + Math.min(handle?.blocks.size ?? 0, MAX_COUNTED_BLOCKS);
}

/** Whether {@link handleChanges} sets the whole handle right, and not only the blocks that change. */
export function isCountedAnew({ blocks }: Handle): boolean {
  return blocks.size <= MAX_COUNTED_BLOCKS;
}

/**
 * The changes that make a handle say what the blocks say, once `changed` are stored. It counts anew, so that what others left in
 * the handle by mistake goes with the next change; the blocks that it only counts in have to be as they were seen. The counts of
 * a handle in more than {@link MAX_COUNTED_BLOCKS} other blocks stay as they are.
 * @returns nothing when the handle is right as it is
 */
export function handleChanges(view: View, id: string, changed: readonly Block[]): Change[] {
  const stored = view.handle(id);
  const cidrs = new Set(changed.map(({ prefix }) => formatPrefix(prefix)));
  const others = [...(stored?.blocks ?? [])].filter(([cidr]) => !cidrs.has(cidr));
  const isCounted = others.length <= MAX_COUNTED_BLOCKS;
  const counted = isCounted ? blocksOf(view, stored).filter(({ prefix }) => !cidrs.has(formatPrefix(prefix))) : [];
  const counts = new Map([...(isCounted ? [] : others), ...countPerBlock([...counted, ...changed], id)]);
  if (sameCounts(stored?.blocks ?? new Map(), counts)) return [];
  const expected = counted.map((value): Change => ({ type: 'expect', record: { kind: 'block', value } }));
  if (counts.size > 0) return [...expected, { type: 'put', record: { kind: 'handle', value: { id, blocks: counts } } }];
  return stored ? [...expected, { type: 'delete', record: { kind: 'handle', value: stored } }] : [];
}

function countPerBlock(blocks: readonly Block[], id: string): Map<string, number> {
  const counts = new Map<string, number>();
  for (const block of blocks) {
    const count = ordinalsWhere(block, (attributes) => attributes.handleId === id).length;
    if (count > 0) counts.set(formatPrefix(block.prefix), count);
  }
  return counts;
}

function sameCounts(a: ReadonlyMap<string, number>, b: ReadonlyMap<string, number>): boolean {
  return a.size === b.size && [...a].every(([cidr, count]) => b.get(cidr) === count);
}
