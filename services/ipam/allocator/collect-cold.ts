import { collectCold, touchBlock } from './block.js';
import { DEFAULT_CONFIG } from './demand.js';
import { settleBlocks } from './give-back.js';
import type { Block } from './records.js';
import type { Decision, View } from './view.js';

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
