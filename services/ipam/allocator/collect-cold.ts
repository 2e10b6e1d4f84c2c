import { DEFAULT_CONFIG } from '../blocks/demand.js';
import { settleBlocks } from '../blocks/release-changes.js';
import { collectCold, touchBlock } from '../records/block.js';
import type { Decision, View } from '../records/view.js';
import type { Block } from './records.js';

export interface ColdBlock {
  /** As it was seen; of another view, too. */
  readonly block: Block;
  readonly nowMs: number;
}

/**
 * Frees the addresses of a block whose cool-down is over, for blocks that nobody allocates from: every allocation and release does
 * the same for its own. A block that nobody needs without them goes. Nothing to do is no change.
 * @returns whether there was something to do
 */
export function collectColdBlock(view: View, { block: { prefix }, nowMs }: ColdBlock): Decision<boolean> {
  const config = view.config() ?? DEFAULT_CONFIG;
  const block = view.block(prefix);
  const collected = block && collectCold(block, nowMs, config.cooldownSeconds);
  if (!collected || collected === block) return { changes: [], outcome: false };
  return {
    changes: [
      ...settleBlocks(view, { blocks: [touchBlock(collected)], ended: [], nowMs }),
      { type: 'expect', record: { kind: 'config', value: config } },
    ],
    outcome: true,
  };
}
