import { FAMILIES, type Address, type Family } from '@podwire/shared/net/address';
import { compareNames } from '@podwire/shared/words/order';

import { encapsulationOf, modeOf, nodeAddressOf, type ClusterView } from '../cluster/cluster.js';

/** Allowed sources of tunnel packets, for one family of outer addresses. */
export interface TunnelSources {
  readonly family: Family;
  /** Encapsulations that pools use; at least one. */
  readonly encapsulations: readonly ('vxlan' | 'ipip')[];
  /** Addresses of the other nodes, in the order of the nodes' names. */
  readonly nodes: readonly Address[];
}

/**
 * The families with encapsulated pools, and the nodes from which tunnel packets are accepted. IPIP supports only
 * IPv4. A node counts from its registration, before it has a block or a tunnel address, as routes to it come later.
 */
export function planTunnelSources({ self, cluster }: ClusterView): readonly TunnelSources[] {
  const pools = [...cluster.pools.values()];
  const nodes = [...cluster.nodes.values()].filter(({ name }) => name !== self).sort(compareNames);
  return FAMILIES.flatMap((family): TunnelSources[] => {
    const modes = pools
      .filter(({ cidr }) => cidr.family === family)
      .map((pool) => modeOf(encapsulationOf(pool)).tunnel);
    const encapsulations = (['vxlan', 'ipip'] as const).filter(
      (kind) => modes.includes(kind) && (kind === 'vxlan' || family === 4),
    );
    if (encapsulations.length === 0) return [];
    return [{ family, encapsulations, nodes: nodes.flatMap((node) => nodeAddressOf(node, family)?.address ?? []) }];
  });
}
