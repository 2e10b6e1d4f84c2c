import type { Cluster, ClusterChange, ClusterPool, ClusterView } from './cluster.js';

/** A pool as IPAM tells it: what the routing needs, and whether it gives addresses to tunnels. */
export interface KnownPool extends ClusterPool {
  /** In use, and tunnels among its uses. */
  readonly givesTunnelAddresses: boolean;
}

/** What IPAM tells of the cluster. */
export interface KnownCluster extends Cluster {
  readonly pools: ReadonlyMap<string, KnownPool>;
}

/** What one node is told of the cluster. */
export interface KnownView extends ClusterView {
  readonly cluster: KnownCluster;
}

/** A `Follower` (routing/cluster.ts), which may also look at what the routing has no use for. */
export interface KnownFollower {
  follow(view: KnownView, change: ClusterChange): void;
  stop(): Promise<void>;
}
