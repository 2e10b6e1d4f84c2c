import type { Family } from '@podwire/shared/net/address';
import type { Prefix } from '@podwire/shared/net/prefix';

/** Who programs routes to the blocks of pools without encapsulation: this dataplane, or BIRD with what BGP tells it. */
export type RoutingMode = 'native' | 'bird';

/** What routes depend on besides the cluster: this node's interfaces, kernel and settings. */
export interface NodeFacts {
  /** Name of the interface that has the node's address of the family; undefined while that is not known. */
  readonly parents: Readonly<Record<Family, string | undefined>>;
  /** Of the node's network, before any encapsulation. */
  readonly mtuBytes: number;
  /** Whether the kernel can make VXLAN devices. */
  readonly hasVxlan: boolean;
  /** Whether the kernel can make IPIP devices. */
  readonly hasIpip: boolean;
  readonly routing: RoutingMode;
  /**
   * Destinations that the node's main table, Podwire's own routes left out, sends to a router; the default route is one of
   * them. What lies in them needs no route between subnets: the network is asked.
   */
  readonly routed: readonly Prefix[];
}

export function equalFacts(a: NodeFacts, b: NodeFacts): boolean {
  return (
    a.parents[4] === b.parents[4] &&
    a.parents[6] === b.parents[6] &&
    a.mtuBytes === b.mtuBytes &&
    a.hasVxlan === b.hasVxlan &&
    a.hasIpip === b.hasIpip &&
    a.routing === b.routing &&
    a.routed.length === b.routed.length &&
    a.routed.every((prefix, place) => equalPrefixes(prefix, b.routed[place]))
  );
}

function equalPrefixes(a: Prefix, b: Prefix | undefined): boolean {
  return a.family === b?.family && a.value === b.value && a.length === b.length;
}
