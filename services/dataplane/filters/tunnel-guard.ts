import { formatAddress, type Family } from '@podwire/shared/net/address';

import { VXLAN_PORT, type ClusterChange, type ClusterView, type Follower } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { TableReconciler, type TableReconcilerOptions } from '../nft/table-reconciler.js';
import {
  ADDRESS_TYPE,
  COUNTED_DROP,
  FILTER_PRIORITY,
  match,
  meta,
  payload,
  PROTOCOL,
  type JsonObject,
  type NftTable,
  type TableName,
} from '../nft/table.js';
import { planTunnelSources, type TunnelSources } from './tunnel-sources.js';

/**
 * Reconciles the table `inet podwire_tunnels`: the node accepts VXLAN and IPIP only from other nodes' addresses. Until the cluster
 * is known, the rules of the previous process stay. Without an encapsulated pool there is no table.
 */
export class TunnelGuard implements Follower {
  readonly #reconciler: TableReconciler;
  #isFollowing = false;

  constructor(options: Omit<TableReconcilerOptions, 'table'>) {
    this.#reconciler = new TableReconciler({ ...options, table: TUNNEL_TABLE });
  }

  follow(view: ClusterView, change: ClusterChange): void {
    // A change of blocks does not change the nodes.
    if (this.#isFollowing && !change.hasOtherChanges) return;
    this.#isFollowing = true;
    const sources = planTunnelSources(view);
    this.#reconciler.request(sources.length > 0 ? tunnelTable(sources) : 'absent');
  }

  /** Conditions; empty while the table is as wanted. */
  conditions(): readonly Condition[] {
    const effect = 'nftables cannot filter tunnel packets, so the node accepts VXLAN and IPIP from any address';
    return this.#reconciler.conditions({ reason: 'TunnelGuardUnavailable' }, effect);
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#reconciler.stop();
  }
}

export const TUNNEL_TABLE: TableName = { family: 'inet', name: 'podwire_tunnels' };

const NODES: Readonly<Record<Family, string>> = { 4: 'nodes4', 6: 'nodes6' };

/** Matches the packets of an encapsulation: `udp dport 4789`, `meta l4proto 4`. */
export const ENCAPSULATED: Readonly<Record<'vxlan' | 'ipip', JsonObject>> = {
  vxlan: match({ payload: { protocol: 'udp', field: 'dport' } }, '==', VXLAN_PORT),
  ipip: match(meta('l4proto'), '==', 4),
};

/**
 * The table that drops tunnel packets to this node from addresses that are not another node's:
 *
 *     ip saddr != @nodes4 udp dport 4789 counter drop
 *
 * The chain is in `input`, where packets are for the node itself: by then, replies to a flow that NAT gave source port 4789 have
 * their pod's address as destination.
 */
function tunnelTable(sources: readonly TunnelSources[]): NftTable {
  return {
    ...TUNNEL_TABLE,
    sets: sources.map((source) => ({
      name: NODES[source.family],
      type: ADDRESS_TYPE[source.family],
      interval: false,
      elements: elementsOf(source),
    })),
    chains: [
      {
        name: 'tunnel_input',
        hook: { type: 'filter', name: 'input', priority: FILTER_PRIORITY },
        rules: sources.flatMap(({ family, encapsulations }) => {
          const isForeign = match(payload(PROTOCOL[family], 'saddr'), '!=', `@${NODES[family]}`);
          return encapsulations.map((kind) => [isForeign, ENCAPSULATED[kind], ...COUNTED_DROP]);
        }),
      },
    ],
  };
}

/** Two nodes with the same address are one element. */
function elementsOf({ nodes }: TunnelSources): readonly string[] {
  return [...new Set(nodes.map(formatAddress))];
}
