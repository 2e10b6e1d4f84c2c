import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { Cluster, ClusterBlock, ClusterChange, ClusterView } from '../cluster/cluster.js';

/** What a block means to BIRD on this node. */
interface BlockShare {
  /** CIDRs that this node tells the others: its blocks, and the addresses that it uses in blocks of others. */
  readonly own: readonly string[];
  /** The CIDR, where the block is another's and no pool is there to let it in. */
  readonly orphans: readonly string[];
}

const NOTHING: BlockShare = { own: [], orphans: [] };

/**
 * Keeps what BIRD's configuration has to know of the blocks, change by change: of 10,000 blocks a node has a handful, and only
 * those may change its configuration.
 */
export class Advertised {
  readonly #shares = new Map<string, BlockShare>();

  /** @returns whether anything became another. A change of pools may make orphans, and looks at every block. */
  update({ self, cluster }: ClusterView, change: ClusterChange): boolean {
    const cidrs =
      change.blocks === 'all' || change.others
        ? new Set([...this.#shares.keys(), ...cluster.blocks.keys()])
        : change.blocks;
    let isOther = false;
    for (const cidr of cidrs) {
      const share = shareOf(self, cluster.blocks.get(cidr), cluster);
      const before = this.#shares.get(cidr) ?? NOTHING;
      isOther ||= !equalTexts(share.own, before.own) || !equalTexts(share.orphans, before.orphans);
      if (share === NOTHING) this.#shares.delete(cidr);
      else this.#shares.set(cidr, share);
    }
    return isOther;
  }

  /** In order, each once. */
  own(): string[] {
    return this.#all(({ own }) => own);
  }

  /** In order. */
  orphans(): string[] {
    return this.#all(({ orphans }) => orphans);
  }

  #all(of: (share: BlockShare) => readonly string[]): string[] {
    return [...new Set([...this.#shares.values()].flatMap(of))].sort();
  }
}

function shareOf(self: string, block: ClusterBlock | undefined, { pools }: Cluster): BlockShare {
  if (!block) return NOTHING;
  const isOwn = block.nodeName === self;
  const cidr = formatPrefix(block.cidr);
  const borrowed = block.borrowed.filter(({ nodeName }) => nodeName === self && !isOwn);
  const own = [...(isOwn ? [cidr] : []), ...borrowed.map(({ address }) => formatPrefix(hostPrefix(address)))];
  const isOrphan = !isOwn && (block.poolName === undefined || !pools.has(block.poolName));
  return own.length === 0 && !isOrphan ? NOTHING : { own, orphans: isOrphan ? [cidr] : [] };
}

function equalTexts(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, place) => text === b[place]);
}
