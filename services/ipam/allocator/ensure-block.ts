import type { Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

import { refusalOf } from '../addresses/refusal.js';
import { sameOwner, type Demand } from '../blocks/demand.js';
import { beginSearch } from '../blocks/search.js';
import { poolOf } from '../pools/pools.js';
import { checkAskedPools, servingPools } from '../pools/selection.js';
import type { Decision, View } from '../records/view.js';
import { offers } from './choose-block.js';
import { judgeNode } from './judge-node.js';
import type { Block, BlockOwner, UnknownNodes } from './records.js';

export interface BlockDemand {
  readonly nodeName: string;
  readonly family: Family;
  /** Names or CIDRs of the pools that may serve, in the order in which they are tried; empty for what selectors choose. */
  readonly pools: readonly string[];
  readonly unknownNodes: UnknownNodes;
  readonly nowMs: number;
}

export interface EnsuredBlock {
  readonly block: Prefix;
  /** Whether it became the node's by this. */
  readonly isNew: boolean;
}

/**
 * A block of the node's own, found or claimed; it may be full. Idempotent: the node's first block in the pools that serve is the
 * answer each time. How many blocks a node may have does not count.
 * @throws Failure NO_POOL, NO_POOL_SERVES, POOLS_EXHAUSTED with the reason for each pool, INVALID_REQUEST for pools that do not exist or are of
 * another family, NODE_NOT_FOUND, NODE_BEING_DELETED; STORE_CORRUPT in place of POOLS_EXHAUSTED when the configuration cannot be read
 */
export function ensureBlock(view: View, demanded: BlockDemand): Decision<EnsuredBlock> {
  const { nodeName, family, pools, unknownNodes, nowMs } = demanded;
  const node = judgeNode(view, { nodeName, unknownNodes, nowMs });
  checkAskedPools(view, { pools, families: [family] });
  const owner: BlockOwner = { kind: 'host', name: nodeName };
  const demand: Demand = {
    family,
    use: 'Workload',
    owner,
    nodeLabels: node.labels,
    namespaceLabels: {},
    pools,
    maxBlocksCount: 0,
    seed: nodeName,
    nowMs,
  };
  const own = ownBlock(view, demand);
  if (own) return { changes: [], outcome: { block: own.prefix, isNew: false } };
  const search = beginSearch(view, demand, servingPools(view, demand));
  for (const { origin, block, changes } of offers(search)) {
    if (origin === 'borrowed') break;
    return {
      changes: [...node.changes, ...changes, { type: 'put', record: { kind: 'block', value: block } }],
      outcome: { block: block.prefix, isNew: origin !== 'own' },
    };
  }
  throw refusalOf(view, [demand], { subject: 'a block', details: { node: nodeName } });
}

/** The node's first block, in the order of the pools and then of the addresses, whose affinity is confirmed. */
function ownBlock(view: View, demand: Demand): Block | undefined {
  const affinities = view.affinitiesOf(demand.owner).filter(({ state }) => state === 'confirmed');
  for (const pool of servingPools(view, demand)) {
    for (const { block: prefix } of affinities) {
      const block = poolOf([pool], prefix) && view.block(prefix);
      if (block && sameOwner(block.owner, demand.owner)) return block;
    }
  }
  return undefined;
}
