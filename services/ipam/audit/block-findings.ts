import { familyBits } from '@podwire/shared/net/address';
import { formatPrefix, prefixOf } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import { collectCooledBlock, removeBlocks } from '../blocks/release-changes.js';
import { cannotRead, expectBlock } from '../records/absence.js';
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
import type { AuditContext } from './context.js';
import { makeFinding, objectOf, noRemedy, formatOwner, safeRemedy, type Finding, type Remedy } from './finding.js';

/** Faults of a block itself, its pool and its owner. `address-findings.ts` checks its addresses. */
export function findBlockFaults(context: AuditContext, block: Block): Finding[] {
  return [
    ...findInvariantFaults(context, block),
    ...findOverlap(context, block),
    ...findPoolMismatch(context, block),
    ...findOwnerFaults(context, block),
    ...findEndedCoolDown(context, block),
  ];
}

function findInvariantFaults({ nowMs }: AuditContext, block: Block): Finding[] {
  const faults = validateBlock(block, nowMs);
  if (faults.length === 0) return [];
  const repairedBlock = repairBlock(block, nowMs);
  const remedy =
    validateBlock(repairedBlock, nowMs).length === 0
      ? safeRemedy('rebuilds the free list from the allocations, which do not change', () => [
          { type: 'put', record: { kind: 'block', value: repairedBlock } },
        ])
      : noRemedy('its allocations are inconsistent; correct the record in the datastore');
  return [blockFinding('blockInvalid', block, { explanation: faults.join('; '), remedy })];
}

/** The block with all other fields derived from its allocations. */
function repairBlock(block: Block, nowMs: number): Block {
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
  const repairedBlock = { ...block, attributes, unallocated: [...listed, ...missing], sequenceNumbers: numbers };
  return releaseAddresses({ ...repairedBlock, sequenceNumber: highest + 1n }, []);
}

/** The larger blocks that a block lies in. */
export function enclosingBlocks({ view }: AuditContext, { prefix }: Block): Block[] {
  const around: Block[] = [];
  for (let length = familyBits(prefix.family) - LARGEST_BLOCK_BITS; length < prefix.length; length++) {
    const block = view.block(prefixOf(prefix, length));
    if (block) around.push(block);
  }
  return around;
}

function findOverlap(context: AuditContext, block: Block): Finding[] {
  const around = enclosingBlocks(context, block);
  if (around.length === 0) return [];
  const names = around.map(({ prefix }) => formatPrefix(prefix)).join(', ');
  const explanation = `block ${formatPrefix(block.prefix)} lies in ${names}, so both can allocate the same addresses`;
  const unneeded = isUnneeded(block) ? [block] : around.every(isUnneeded) ? around : [];
  const remedy =
    unneeded.length > 0
      ? safeRemedy(`removes ${listBlocks(unneeded)}, which has no address in use`, () =>
          removalChanges(context, unneeded),
        )
      : noRemedy('both have addresses in use; release the addresses of one block');
  return [blockFinding('blocksOverlap', block, { explanation, remedy, overlapping: around })];
}

function findPoolMismatch(context: AuditContext, block: Block): Finding[] {
  const { view } = context;
  const pool = poolOf(view.pools(), block.prefix);
  if (pool?.blockSizeBits === block.prefix.length || context.hasUnreadable('pool')) return [];
  const name = formatPrefix(block.prefix);
  const text = pool
    ? `block ${name} differs in size from the blocks of pool "${pool.name}", which are /${pool.blockSizeBits}`
    : `block ${name} is in no pool`;
  const preconditions: Change = pool
    ? { type: 'expect', record: { kind: 'pool', value: pool } }
    : { type: 'expectPools' };
  const kind = pool ? 'blockOfOtherSize' : 'blockWithoutPool';
  const remedy = removalRemedy(context, block, [preconditions]);
  return [
    blockFinding(kind, block, { explanation: `${text}; ${usedCount(block)} of its addresses are in use`, remedy }),
  ];
}

/** Removes an unneeded block. */
function removalRemedy(context: AuditContext, block: Block, preconditions: readonly Change[]): Remedy {
  if (!isUnneeded(block)) return noRemedy('its addresses are in use; it can be removed after their release');
  return safeRemedy('removes the empty block with its affinity', () => [
    ...preconditions,
    ...removalChanges(context, [block]),
  ]);
}

function removalChanges({ view, nowMs }: AuditContext, blocks: readonly Block[]): Change[] {
  return removeBlocks(view, { blocks, kept: [], ended: [], nowMs });
}

function findOwnerFaults(context: AuditContext, block: Block): Finding[] {
  const { owner, prefix } = block;
  const name = formatPrefix(prefix);
  if (!owner) {
    if (!isUnneeded(block)) return [];
    const explanation = `block ${name} has neither an owner nor an address in use`;
    return [blockFinding('blockWithoutOwnerEmpty', block, { explanation, remedy: removalRemedy(context, block, []) })];
  }
  return [...findOwnerAffinityFaults(context, block, owner), ...findGoneOwner(context, block, owner)];
}

function findOwnerAffinityFaults(context: AuditContext, block: Block, owner: BlockOwner): Finding[] {
  const { view } = context;
  const affinity = view.affinity(owner, block.prefix);
  if (affinity?.state === 'confirmed' || cannotRead(context.view, { kind: 'affinity', owner, block: block.prefix }))
    return [];
  const name = formatPrefix(block.prefix);
  const state = affinity ? `an affinity in state ${affinity.state}` : 'no affinity';
  const explanation = `block ${name} names ${formatOwner(owner)}, which has ${state}`;
  const confirm = safeRemedy(`confirms the affinity of ${formatOwner(owner)}`, () => [
    ...expectBlock(view, block.prefix),
    { type: 'put', record: { kind: 'affinity', value: confirmedAffinity(owner, block) } },
  ]);
  const endsClaim = affinity?.state === 'pendingDeletion' && isUnneeded(block);
  const remedy = endsClaim ? removalRemedy(context, block, []) : confirm;
  return [blockFinding(affinity ? 'affinityUnconfirmed' : 'blockWithoutAffinity', block, { explanation, remedy })];
}

function confirmedAffinity(owner: BlockOwner, { prefix }: Block): Affinity {
  return { owner, block: prefix, state: 'confirmed' };
}

function findGoneOwner(context: AuditContext, block: Block, owner: BlockOwner): Finding[] {
  if (owner.kind !== 'host' || !context.isNodeGone(owner.name)) return [];
  const explanation = `block ${formatPrefix(block.prefix)} belongs to node ${owner.name}, which is gone`;
  return [blockFinding('blockOfGoneNode', block, { explanation, remedy: removalRemedy(context, block, []) })];
}

function findEndedCoolDown({ view, nowMs }: AuditContext, block: Block): Finding[] {
  const collected = collectCooled(block, nowMs, view.config()?.cooldownSeconds ?? 0);
  const count = usedCount(block) - usedCount(collected);
  if (count === 0) return [];
  const explanation = `the cool-down of ${formatCount(count, 'address', 'addresses')} of block ${formatPrefix(block.prefix)} is over`;
  const remedy = safeRemedy('frees the addresses', () => collectCooledBlock(view, { block, nowMs }).changes);
  return [blockFinding('coolDownOver', block, { explanation, remedy })];
}

interface BlockFindingParts extends Pick<Finding, 'explanation' | 'remedy'> {
  readonly overlapping?: readonly Block[];
}

function blockFinding(
  kind: Finding['kind'],
  block: Block,
  { explanation, remedy, overlapping = [] }: BlockFindingParts,
): Finding {
  const owner = block.owner?.kind === 'host' ? [objectOf.node(block.owner.name)] : [];
  return makeFinding({
    kind,
    subject: { type: 'block', prefix: block.prefix },
    objects: [objectOf.block(block.prefix), ...overlapping.map(({ prefix }) => objectOf.block(prefix)), ...owner],
    explanation,
    remedy,
  });
}

function listBlocks(blocks: readonly Block[]): string {
  return blocks.map(({ prefix }) => `block ${formatPrefix(prefix)}`).join(', ');
}

/** Faults of an affinity whose block does not name its owner. All other affinities are judged with their block. */
export function findAffinityFaults(context: AuditContext, affinity: Affinity): Finding[] {
  const { owner, block: prefix, state } = affinity;
  if (cannotRead(context.view, { kind: 'block', prefix })) return [];
  const block = context.view.block(prefix);
  if (block?.owner?.kind === owner.kind && block.owner.name === owner.name) return [];
  const claim = `${formatOwner(owner)} has an affinity (${state}) for block ${formatPrefix(prefix)}`;
  const reason = !block
    ? 'which does not exist'
    : block.owner
      ? `which belongs to ${formatOwner(block.owner)}`
      : 'which has no owner';
  return [
    makeFinding({
      kind: block ? 'affinityOfOthersBlock' : 'affinityWithoutBlock',
      subject: { type: 'affinity', owner, block: prefix },
      objects: [
        objectOf.affinity(owner, prefix),
        objectOf.block(prefix),
        ...(owner.kind === 'host' ? [objectOf.node(owner.name)] : []),
      ],
      explanation: `${claim}, ${reason}`,
      remedy: safeRemedy('removes the affinity; the block stays as it is', () => [
        ...expectBlock(context.view, prefix),
        { type: 'delete', record: { kind: 'affinity', value: affinity } },
      ]),
    }),
  ];
}
