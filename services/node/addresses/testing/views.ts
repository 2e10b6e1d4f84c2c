import { HOST_MAC } from '@podwire/shared/attachment/names';
import type { ClusterView } from '@podwire/dataplane/cluster/cluster';
import type { ObservedLink } from '@podwire/dataplane/wiring/observed';

/** Pools of all views: a change makes a new map. */
const POOLS: ClusterView['cluster']['pools'] = new Map();

/** This node's view of the cluster, after a number of recalls of its leases. */
export function recallView(
  self: string,
  leaseRecallCount: bigint,
  pools = POOLS,
  inventoryRequestCount = 0n,
): ClusterView {
  const rest = { ipv4: undefined, ipv6: undefined, vxlanIpv4: undefined, vxlanIpv6: undefined };
  const node = { name: self, leaseRecallCount, inventoryRequestCount, ipip: undefined, asNumber: undefined, ...rest };
  return { self, isDatastoreLocked: false, cluster: { nodes: new Map([[self, node]]), pools, blocks: new Map() } };
}

/** The host's end of a pod's interface, as the kernel lists it. */
export function hostLink(name: string): ObservedLink {
  const rest = { txQueueLength: 1000, queueCount: 1, alias: null, running: true, peerIndex: 2 };
  return { name, index: 7, kind: 'veth', mac: HOST_MAC, mtuBytes: 1500, up: true, ...rest };
}
