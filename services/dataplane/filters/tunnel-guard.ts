import { formatAddress, type Family } from '@podwire/shared/net/address';

import { VXLAN_PORT, type ClusterChange, type ClusterView, type Follower } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { TableKeeper, type TableKeeperOptions } from './table-reconciler.js';
import {
  ADDRESS_TYPE,
  COUNTED_DROP,
  elementsChange,
  FILTER_PRIORITY,
  match,
  meta,
  payload,
  PROTOCOL,
  type JsonObject,
  type NftCommand,
  type NftTable,
  type TableName,
} from './table.js';
import { planTunnelSources, type TunnelSources } from './tunnel-sources.js';

/**
 * Keeps the table `inet podwire_tunnels`: the node accepts VXLAN and IPIP only from other nodes' addresses. Until the cluster is
 * known the previous process's rules stay; without any there is no tunnel either. Without an encapsulated pool there is no table.
 */
export class TunnelGuard implements Follower {
  readonly #keeper: TableKeeper;
  #sources: readonly TunnelSources[] | undefined;

  constructor(options: Omit<TableKeeperOptions, 'table'>) {
    this.#keeper = new TableKeeper({ ...options, table: TUNNEL_TABLE });
  }

  follow(view: ClusterView, change: ClusterChange): void {
    const before = this.#sources;
    // Blocks do not affect nodes.
    if (before && !change.others) return;
    const sources = planTunnelSources(view);
    this.#sources = sources;
    const delta = before && tunnelDelta(before, sources);
    if (delta?.length === 0) return;
    // The table reconciler reports failures and retries.
    void this.#keeper.want(sources.length > 0 ? tunnelTable(sources) : 'absent', delta).catch(() => undefined);
  }

  /** Conditions; empty when there are no differences. */
  conditions(): readonly Condition[] {
    const failure = this.#keeper.failure;
    if (!failure) return [];
    const message = `the node accepts VXLAN and IPIP from any address, as nftables cannot filter them: ${failure.message}`;
    return [{ reason: 'TunnelGuardUnavailable', message }];
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#keeper.stop();
  }
}

const TUNNEL_TABLE: TableName = { family: 'inet', name: 'podwire_tunnels' };

const NODES: Readonly<Record<Family, string>> = { 4: 'nodes4', 6: 'nodes6' };

/** Matches the packets of an encapsulation: `udp dport 4789`, `meta l4proto 4`. */
export const ENCAPSULATED: Readonly<Record<'vxlan' | 'ipip', JsonObject>> = {
  vxlan: match({ payload: { protocol: 'udp', field: 'dport' } }, '==', VXLAN_PORT),
  ipip: match(meta('l4proto'), '==', 4),
};

/**
 * The table that drops tunnel packets to the node which come from no other node's address:
 *
 *     ip saddr != @nodes4 udp dport 4789 counter drop
 *
 * In `input`, where the node's own addresses are the destination: a flow that NAT gave port 4789 has its pod's address by then.
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
          const isOther = match(payload(PROTOCOL[family], 'saddr'), '!=', `@${NODES[family]}`);
          return encapsulations.map((kind) => [isOther, ENCAPSULATED[kind], ...COUNTED_DROP]);
        }),
      },
    ],
  };
}

/** The commands that change the set of nodes; undefined when more than the nodes differs. */
function tunnelDelta(
  before: readonly TunnelSources[],
  after: readonly TunnelSources[],
): readonly NftCommand[] | undefined {
  if (shapeOf(before) !== shapeOf(after)) return undefined;
  const change = { table: TUNNEL_TABLE, sets: after.map((source, at) => setChange(before[at], source)) };
  return elementsChange(change);
}

function setChange(before: TunnelSources | undefined, after: TunnelSources) {
  return { name: NODES[after.family], from: before ? elementsOf(before) : [], to: elementsOf(after) };
}

function shapeOf(sources: readonly TunnelSources[]): string {
  return JSON.stringify(sources.map(({ family, encapsulations }) => [family, encapsulations]));
}

/** Two nodes with the same address are one element. */
function elementsOf({ nodes }: TunnelSources): readonly string[] {
  return [...new Set(nodes.map(formatAddress))];
}
