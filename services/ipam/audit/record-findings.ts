import { comparePrefixes, formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { Block, Handle } from '../allocator/records.js';
import { expectNoBlock } from '../records/absence.js';
import type { Change } from '../records/view.js';
import { countOf, expectBlock, type Judging } from './context.js';
import { makeFinding, named, safely, type Finding, type FindingKind } from './finding.js';

/** A handle by its ID, and blocks in which addresses of it were seen that it does not name. */
interface HandleInQuestion {
  readonly id: string;
  readonly alsoIn: readonly Prefix[];
}

/** A block that a handle is said to have addresses in, and how many it has. */
interface Counted {
  readonly prefix: Prefix;
  readonly block: Block | undefined;
  readonly count: number;
}

/** What can be wrong with a handle: it counts what the blocks do not have, or does not count, or is missing. */
export function judgeHandle(judging: Judging, { id, alsoIn }: HandleInQuestion): Finding[] {
  if (judging.cannotRead({ kind: 'handle', id })) return [];
  const handle = judging.view.handle(id);
  const prefixes = distinct([...blocksOf(handle), ...alsoIn]);
  if (prefixes.some((prefix) => judging.cannotRead({ kind: 'block', prefix }))) return [];
  const counted = prefixes.map((prefix): Counted => {
    const block = judging.view.block(prefix);
    return { prefix, block, count: block ? countOf(block, id) : 0 };
  });
  const kind = faultOf(handle, counted);
  return kind ? [describe(kind, { id, alsoIn, handle, counted })] : [];
}

function faultOf(handle: Handle | undefined, counted: readonly Counted[]): FindingKind | undefined {
  const total = counted.reduce((sum, { count }) => sum + count, 0);
  if (!handle) return total > 0 ? 'handleMissing' : undefined;
  if (total === 0) return 'handleWithoutAddresses';
  const right = counted.every(({ prefix, count }) => (handle.blocks.get(formatPrefix(prefix)) ?? -1) === count);
  const exact = counted.filter(({ count }) => count > 0).length === handle.blocks.size;
  return right && exact ? undefined : 'handleCountsWrong';
}

interface Fault extends HandleInQuestion {
  readonly handle: Handle | undefined;
  readonly counted: readonly Counted[];
}

function describe(kind: FindingKind, { id, alsoIn, handle, counted }: Fault): Finding {
  const blocks = counted.filter(({ count }) => count > 0).map(({ prefix }) => named.block(prefix));
  const counts = new Map(counted.flatMap(({ prefix, count }) => (count > 0 ? [[formatPrefix(prefix), count]] : [])));
  const rests = counted.map(({ prefix, block }): Change => (block ? expectBlock(block) : expectNoBlock(prefix)));
  const remove: Change[] = handle ? [{ type: 'delete', record: { kind: 'handle', value: handle } }] : [];
  const write: Change = { type: 'put', record: { kind: 'handle', value: { id, blocks: counts } } };
  return makeFinding({
    kind,
    subject: { type: 'handle', id, alsoIn },
    objects: [named.handle(id), ...blocks],
    explanation: explain(kind, { id, handle, counts }),
    remedy:
      counts.size === 0
        ? safely('removes the handle', () => [...rests, ...remove])
        : safely('writes the handle with what the blocks have', () => [...rests, write]),
  });
}

interface Counts {
  readonly id: string;
  readonly handle: Handle | undefined;
  readonly counts: ReadonlyMap<string, number>;
}

function explain(kind: FindingKind, { id, handle, counts }: Counts): string {
  if (kind === 'handleMissing') return `addresses in ${countText(counts)} are of handle ${id}, which does not exist`;
  const stored = countText(handle?.blocks ?? new Map());
  return counts.size === 0
    ? `handle ${id} counts addresses in ${stored}, and has none`
    : `handle ${id} counts addresses in ${stored}, and has them in ${countText(counts)}`;
}

function countText(counts: ReadonlyMap<string, number>): string {
  const texts = [...counts].sort().map(([cidr, count]) => `${cidr} (${count})`);
  return texts.length > 0 ? texts.join(', ') : 'no block';
}

function blocksOf(handle: Handle | undefined): Prefix[] {
  return [...(handle?.blocks.keys() ?? [])].flatMap((cidr) => {
    const parsed = parsePrefix(cidr);
    return parsed.ok ? [parsed.prefix] : [];
  });
}

function distinct(prefixes: readonly Prefix[]): Prefix[] {
  return prefixes
    .toSorted(comparePrefixes)
    .filter((prefix, index, sorted) => index === 0 || comparePrefixes(prefix, sorted[index - 1] ?? prefix) !== 0);
}
