import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix, prefixOf } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { collectCooledBlock, removeBlocks } from '../blocks/release-changes.js';
import { expectNoBlock } from '../records/absence.js';
import {
  collectCooled,
  isUnneeded,
  LARGEST_BLOCK_BITS,
  releaseAddresses,
  usedCount,
  validateBlock,
  wholeSeconds,
  type Affinity,
  type Block,
  type BlockOwner,
  type Ordinal,
} from '../records/block.js';
import { poolOf } from '../records/pool.js';
import type { Change } from '../records/view.js';
import { expectBlock, type Judging } from './context.js';
import { makeFinding, named, noRemedy, ownerText, safely, type Finding, type Remedy } from './finding.js';

/** What can be wrong with a block itself, its place and its owner. `address-findings.ts` checks its addresses. */
export function judgeBlock(judging: Judging, block: Block): Finding[] {
  return [
    ...judgeInvariants(judging, block),
    ...judgeOverlap(judging, block),
    ...judgePlace(judging, block),
    ...judgeOwner(judging, block),
    ...judgeCoolDown(judging, block),
  ];
}

function judgeInvariants({ nowMs }: Judging, block: Block): Finding[] {
  const faults = validateBlock(block, nowMs);
  if (faults.length === 0) return [];
  const mended = mendBlock(block, nowMs);
  const remedy =
    validateBlock(mended, nowMs).length === 0
      ? safely('writes the block with what its allocations leave free, no address changing hands', () => [
          { type: 'put', record: { kind: 'block', value: mended } },
        ])
      : noRemedy('its allocations themselves are at fault; correct the record in the datastore');
  return [found('blockInvalid', block, { explanation: faults.join('; '), remedy })];
}

/** The block as its allocations want it: they are believed, and all else follows from them. */
function mendBlock(block: Block, nowMs: number): Block {
  const { allocations, sequenceNumbers } = block;
  const isFree = (ordinal: Ordinal): boolean => allocations[ordinal] === null;
  const listed = new Set(block.unallocated.filter(isFree));
  const missing = [...allocations.keys()].filter((ordinal) => isFree(ordinal) && !listed.has(ordinal));
  const numbers = sequenceNumbers.map((number, ordinal) => (isFree(ordinal) ? null : number));
  const highest = numbers.reduce<bigint>((a, b) => (b === null || a > b ? a : b), block.sequenceNumber - 1n);
  const attributes = block.attributes.map((entry) =>
    entry.releasedAtMs !== undefined && entry.releasedAtMs > nowMs
      ? { ...entry, releasedAtMs: wholeSeconds(nowMs) }
      : entry,
  );
  const mended = { ...block, attributes, unallocated: [...listed, ...missing], sequenceNumbers: numbers };
  return releaseAddresses({ ...mended, sequenceNumber: highest + 1n }, []);
}

/** The larger blocks that a block lies in. */
export function blocksAround({ view }: Judging, { prefix }: Block): Block[] {
  const around: Block[] = [];
  for (let length = familyBits(prefix.family) - LARGEST_BLOCK_BITS; length < prefix.length; length++) {
    const block = view.block(prefixOf(prefix, length));
    if (block) around.push(block);
  }
  return around;
}

function judgeOverlap(judging: Judging, block: Block): Finding[] {
  const around = blocksAround(judging, block);
  if (around.length === 0) return [];
  const names = around.map(({ prefix }) => formatPrefix(prefix)).join(', ');
  const explanation = `block ${formatPrefix(block.prefix)} lies in ${names}, so both give the same addresses`;
  const unneeded = isUnneeded(block) ? [block] : around.every(isUnneeded) ? around : [];
  const remedy =
    unneeded.length > 0
      ? safely(`removes ${describe(unneeded)}, in which nothing is in use`, () => remove(judging, unneeded))
      : noRemedy('addresses of both are in use; release those of one');
  return [found('blocksOverlap', block, { explanation, remedy, others: around })];
}

function judgePlace(judging: Judging, block: Block): Finding[] {
  const { view } = judging;
  const pool = poolOf(view.pools(), block.prefix);
  if (pool?.blockSizeBits === block.prefix.length || judging.cannotReadAll('pool')) return [];
  const name = formatPrefix(block.prefix);
  const text = pool
    ? `block ${name} is not of the size of pool "${pool.name}", whose blocks are /${pool.blockSizeBits}`
    : `block ${name} is in no pool`;
  const rests: Change = pool ? { type: 'expect', record: { kind: 'pool', value: pool } } : { type: 'expectPools' };
  const kind = pool ? 'blockOfOtherSize' : 'blockWithoutPool';
  const remedy = removal(judging, block, [rests]);
  return [found(kind, block, { explanation: `${text}; ${usedCount(block)} of its addresses are in use`, remedy })];
}

/** Removes an unneeded block. */
function removal(judging: Judging, block: Block, rests: readonly Change[]): Remedy {
  if (!isUnneeded(block)) return noRemedy('its addresses are in use; it can go with the last of them');
  return safely('removes the empty block with its affinity', () => [...rests, ...remove(judging, [block])]);
}

function remove({ view, nowMs }: Judging, blocks: readonly Block[]): Change[] {
  return removeBlocks(view, { blocks, kept: [], ended: [], nowMs });
}

function judgeOwner(judging: Judging, block: Block): Finding[] {
  const { owner, prefix } = block;
  const name = formatPrefix(prefix);
  if (!owner) {
    if (!isUnneeded(block)) return [];
    const explanation = `block ${name} has neither an owner nor an address in use`;
    return [found('blockWithoutOwnerEmpty', block, { explanation, remedy: removal(judging, block, []) })];
  }
  return [...judgeAffinityOf(judging, block, owner), ...judgeGoneOwner(judging, block, owner)];
}

function judgeAffinityOf(judging: Judging, block: Block, owner: BlockOwner): Finding[] {
  const { view } = judging;
  const affinity = view.affinity(owner, block.prefix);
  if (affinity?.state === 'confirmed' || judging.cannotRead({ kind: 'affinity', owner, block: block.prefix }))
    return [];
  const name = formatPrefix(block.prefix);
  const state = affinity ? `an affinity that is ${affinity.state}` : 'no affinity';
  const explanation = `block ${name} names ${ownerText(owner)}, which has ${state}`;
  const confirm = safely(`confirms the affinity of ${ownerText(owner)}`, () => [
    expectBlock(block),
    { type: 'put', record: { kind: 'affinity', value: confirmed(owner, block) } },
  ]);
  const ends = affinity?.state === 'pendingDeletion' && isUnneeded(block);
  const remedy = ends ? removal(judging, block, []) : confirm;
  return [found(affinity ? 'affinityUnconfirmed' : 'blockWithoutAffinity', block, { explanation, remedy })];
}

function confirmed(owner: BlockOwner, { prefix }: Block): Affinity {
  return { owner, block: prefix, state: 'confirmed' };
}

function judgeGoneOwner(judging: Judging, block: Block, owner: BlockOwner): Finding[] {
  if (owner.kind !== 'host' || !judging.isGone(owner.name)) return [];
  const explanation = `block ${formatPrefix(block.prefix)} belongs to node ${owner.name}, which is gone`;
  return [found('blockOfGoneNode', block, { explanation, remedy: removal(judging, block, []) })];
}

function judgeCoolDown({ view, nowMs }: Judging, block: Block): Finding[] {
  const collected = collectCooled(block, nowMs, view.config()?.cooldownSeconds ?? 0);
  const count = usedCount(block) - usedCount(collected);
  if (count === 0) return [];
  const explanation = `the cool-down of ${formatCount(count, 'address', 'addresses')} of block ${formatPrefix(block.prefix)} is over`;
  const remedy = safely('frees them', () => collectCooledBlock(view, { block, nowMs }).changes);
  return [found('coolDownOver', block, { explanation, remedy })];
}

interface BlockFault extends Pick<Finding, 'explanation' | 'remedy'> {
  readonly others?: readonly Block[];
}

function found(kind: Finding['kind'], block: Block, { explanation, remedy, others = [] }: BlockFault): Finding {
  const owner = block.owner?.kind === 'host' ? [named.node(block.owner.name)] : [];
  return makeFinding({
    kind,
    subject: { type: 'block', prefix: block.prefix },
    objects: [named.block(block.prefix), ...others.map(({ prefix }) => named.block(prefix)), ...owner],
    explanation,
    remedy,
  });
}

function describe(blocks: readonly Block[]): string {
  return blocks.map(({ prefix }) => `block ${formatPrefix(prefix)}`).join(', ');
}

/** Faults of an affinity whose block does not name its owner. All other affinities are judged with their block. */
export function judgeAffinity(judging: Judging, affinity: Affinity): Finding[] {
  const { owner, block: prefix, state } = affinity;
  if (judging.cannotRead({ kind: 'block', prefix })) return [];
  const block = judging.view.block(prefix);
  if (block?.owner?.kind === owner.kind && block.owner.name === owner.name) return [];
  const claim = `${ownerText(owner)} has an affinity (${state}) for block ${formatPrefix(prefix)}`;
  const reason = !block
    ? 'which does not exist'
    : block.owner
      ? `which belongs to ${ownerText(block.owner)}`
      : 'which nobody owns';
  const rests = block ? expectBlock(block) : expectNoBlock(prefix);
  return [
    makeFinding({
      kind: block ? 'affinityOfOthersBlock' : 'affinityWithoutBlock',
      subject: { type: 'affinity', owner, block: prefix },
      objects: [
        named.affinity(owner, prefix),
        named.block(prefix),
        ...(owner.kind === 'host' ? [named.node(owner.name)] : []),
      ],
      explanation: `${claim}, ${reason}`,
      remedy: safely('removes the affinity; the block stays as it is', () => [
        rests,
        { type: 'delete', record: { kind: 'affinity', value: affinity } },
      ]),
    }),
  ];
}
