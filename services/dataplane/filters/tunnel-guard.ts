import type { ClusterChange, ClusterView, Follower } from '../cluster/cluster.js';
import { TUNNEL_TABLE, tunnelDelta, tunnelTable } from '../kernel/nft/tunnel-table.js';
import type { Condition } from '../routes/wanted.js';
import { TableKeeper, type TableKeeperOptions } from './table-reconciler.js';
import { planTunnelSources, type TunnelSources } from './tunnel-sources.js';

/**
 * Keeps the table `inet podwire_tunnels`: the node accepts VXLAN and IPIP from other nodes' addresses alone. Until the cluster is known the
 * rules of the process before stay; without any there is no tunnel either. Without an encapsulated pool there is no table.
 */
export class TunnelGuard implements Follower {
  readonly #keeper: TableKeeper;
  #sources: readonly TunnelSources[] | undefined;

  constructor(options: Omit<TableKeeperOptions, 'table'>) {
    this.#keeper = new TableKeeper({ ...options, table: TUNNEL_TABLE });
  }

  follow(view: ClusterView, change: ClusterChange): void {
    const before = this.#sources;
    // Blocks say nothing about nodes.
    if (before && !change.others) return;
    const sources = planTunnelSources(view);
    this.#sources = sources;
    const delta = before && tunnelDelta(before, sources);
    if (delta?.length === 0) return;
    // The keeper reports failures and retries.
    void this.#keeper.want(sources.length > 0 ? tunnelTable(sources) : 'absent', delta).catch(() => undefined);
  }

  /** Why the table is not as wanted; empty when it is. */
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
