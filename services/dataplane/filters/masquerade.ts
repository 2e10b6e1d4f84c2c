import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, hostPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { ClusterView } from '../cluster/cluster.js';

/** What is spared from masquerading besides the pools: nothing, or the addresses of the nodes. */
export const NAT_EXCLUSIONS = ['pools', 'pools-and-nodes'] as const;

type NatExclusion = (typeof NAT_EXCLUSIONS)[number];

/** How packets are masqueraded, as an operator has set it. */
export interface MasqueradeSettings {
  readonly exclude: NatExclusion;
  /** Names of the node's interfaces by which masqueraded packets leave; a `*` at the end stands for any rest. Empty: all. */
  readonly interfaces: readonly string[];
  /** Ports that TCP and UDP packets leave from; undefined: the kernel keeps the pod's where it can. */
  readonly ports: PortRange | undefined;
}

/** Ports from `first` to `last`, both included. */
interface PortRange {
  readonly first: number;
  readonly last: number;
}

/** Which packets of one family leave with the node's address: those from `sources` that go to none of `exempt`. */
export interface Masquerade {
  readonly family: Family;
  /** Ranges of the pools with `natOutgoing`; at least one. In order, and none within another. */
  readonly sources: readonly Prefix[];
  /** Ranges of all pools, and what else is spared. In order, and none within another. */
  readonly exempt: readonly Prefix[];
  readonly interfaces: readonly string[];
  readonly ports: PortRange | undefined;
}

/**
 * What is to be masqueraded on a node, family by family; undefined: no pool of the family asks for it (calico.md 5.5).
 *
 * Pools that give no addresses any more count as long as they exist, as their pods do; so do those for load balancers alone:
 * their addresses are the cluster's, and a pod that sends to one is answered. The outer packets of tunnels come from nodes'
 * addresses, which are in no pool, so that none of them is masqueraded.
 */
export function planMasquerade(
  { cluster }: ClusterView,
  { exclude, interfaces, ports }: MasqueradeSettings,
): Readonly<Record<Family, Masquerade | undefined>> {
  const pools = [...cluster.pools.values()];
  const nodes = exclude === 'pools-and-nodes' ? [...cluster.nodes.values()] : [];
  const plan = (family: Family): Masquerade | undefined => {
    const ofFamily = pools.filter(({ cidr }) => cidr.family === family);
    const sources = ofFamily.filter(({ natOutgoing }) => natOutgoing).map(({ cidr }) => cidr);
    if (sources.length === 0) return undefined;
    const addresses = nodes.flatMap(({ ipv4, ipv6 }) => (family === 4 ? ipv4 : ipv6) ?? []);
    const exempt = [...ofFamily.map(({ cidr }) => cidr), ...addresses.map(({ address }) => hostPrefix(address))];
    return { family, sources: outermost(sources), exempt: outermost(exempt), interfaces, ports };
  };
  return { 4: plan(4), 6: plan(6) };
}

/** The same addresses by prefixes none of which holds another, as interval sets need them; in order. */
export function outermost(prefixes: readonly Prefix[]): Prefix[] {
  const kept: Prefix[] = [];
  // In this order a prefix comes right after those that hold it, and what is not within the last kept one is within none.
  for (const prefix of prefixes.toSorted(comparePrefixes)) {
    const last = kept.at(-1);
    if (!last || !prefixContains(last, prefix)) kept.push(prefix);
  }
  return kept;
}
