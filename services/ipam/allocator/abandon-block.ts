import type { Prefix } from '@podwire/shared/net/prefix';

import { DEFAULT_CONFIG, sameOwner } from '../blocks/demand.js';
import { isUnneeded, removeBlocks } from '../blocks/release-changes.js';
import { cannotRead, expectNoBlock } from '../records/absence.js';
import { collectCold, touchBlock } from '../records/block.js';
import type { Change, View } from '../records/view.js';
import type { Block, BlockOwner } from './records.js';

export interface Abandoning {
  readonly owner: BlockOwner;
  readonly prefix: Prefix;
  /** Whether a block with addresses in use, or cooling down, is to stay with its owner. Otherwise it stays without one. */
  readonly mustBeEmpty: boolean;
  readonly nowMs: number;
}

/** What became of an owner's claim of a block. */
export type Abandoned =
  /** The block was empty, and went with the claim. */
  | 'removed'
  /** The block stays for as long as its addresses are in use, and is nobody's. */
  | 'disowned'
  /** The block is another's, or nobody's, or is not there; a claim that said otherwise is gone. */
  | 'notOwned'
  /** The block has addresses in use and was to be empty: nothing was changed. */
  | 'notEmpty';

export interface Abandonment {
  readonly result: Abandoned;
  readonly changes: readonly Change[];
}

/** Operations that {@link abandonBlock} takes at most, where Windows keeps no addresses in the block. */
export const OPERATIONS_TO_ABANDON = 3;

/** Ends an owner's claim of a block. It touches no other owner's claim, were it of the same name. */
export function abandonBlock(view: View, { owner, prefix, mustBeEmpty, nowMs }: Abandoning): Abandonment {
  const stored = view.block(prefix);
  if (!stored || !sameOwner(stored.owner, owner)) {
    const changes = removeAffinity(view, { owner, prefix });
    return { result: 'notOwned', changes: changes.length > 0 ? [...changes, ...expectAsSeen(view, prefix)] : [] };
  }
  const config = view.config() ?? DEFAULT_CONFIG;
  const block = collectCold(stored, nowMs, config.cooldownSeconds);
  const expected: Change[] = block !== stored ? [{ type: 'expect', record: { kind: 'config', value: config } }] : [];
  if (isUnneeded(block)) {
    const removal = removeBlocks(view, { blocks: [block], kept: [], ended: [], nowMs });
    return { result: 'removed', changes: [...removal, ...expected] };
  }
  if (mustBeEmpty) return { result: 'notEmpty', changes: [] };
  const value: Block = { ...touchBlock(block), owner: undefined, claimTimeMs: undefined };
  return {
    result: 'disowned',
    changes: [
      { type: 'put', record: { kind: 'block', value } },
      ...removeAffinity(view, { owner, prefix }),
      ...expected,
    ],
  };
}

/** A claim writes block and affinity, and the view may have only one of the two as they are now. */
function expectAsSeen(view: View, prefix: Prefix): Change[] {
  const value = view.block(prefix);
  if (value) return [{ type: 'expect', record: { kind: 'block', value } }];
  return cannotRead(view, { kind: 'block', prefix }) ? [] : [expectNoBlock(prefix)];
}

interface Claim {
  readonly owner: BlockOwner;
  readonly prefix: Prefix;
}

function removeAffinity(view: View, { owner, prefix }: Claim): Change[] {
  const value = view.affinity(owner, prefix);
  return value ? [{ type: 'delete', record: { kind: 'affinity', value } }] : [];
}
