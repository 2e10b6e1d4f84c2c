import { FAMILIES, type Family } from '@podwire/shared/net/address';
import { hostPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { ClusterChange, ClusterView, Follower } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { TableReconciler, type TableReconcilerOptions } from '../nft/table-reconciler.js';
import {
  ADDRESS_TYPE,
  match,
  meta,
  outermost,
  payload,
  prefixJson,
  PROTOCOL,
  type JsonObject,
  type NftSet,
  type NftTable,
  type TableName,
} from '../nft/table.js';

/** Destinations exempt from masquerading besides the pools: none, or the addresses of the nodes. */
export const NAT_EXCLUSIONS = ['pools', 'pools-and-nodes'] as const;

type NatExclusion = (typeof NAT_EXCLUSIONS)[number];

/** The operator's masquerading options. */
export interface MasqueradeSettings {
  readonly exclude: NatExclusion;
  /** Outgoing interfaces of the node for masqueraded packets; a trailing `*` is a wildcard. Empty: all. */
  readonly interfaces: readonly string[];
  /** Source ports of TCP and UDP packets; undefined: the kernel keeps the pod's if possible. */
  readonly ports: PortRange | undefined;
}

/** Ports from `first` to `last`, both included. */
interface PortRange {
  readonly first: number;
  readonly last: number;
}

/** Masqueraded packets of one family: from `sources`, to destinations outside `exempt`. */
interface Masquerade {
  readonly family: Family;
  /** Ranges of the pools with `natOutgoing`; at least one. Sorted, and disjoint. */
  readonly sources: readonly Prefix[];
  /** Ranges of all pools, and other exempt ones. Sorted, and disjoint. */
  readonly exempt: readonly Prefix[];
  readonly interfaces: readonly string[];
  readonly ports: PortRange | undefined;
}

/**
 * Plans masquerading on a node per family; undefined when no pool of the family requires it (calico.md 5.5).
 *
 * Disabled pools count while they exist, as their pods do. Pools for load balancers count too: their addresses belong to the
 * cluster. Outer packets of tunnels come from nodes' addresses, which are in no pool, so they are never masqueraded.
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

const SOURCES = 'nat_sources';
const EXEMPT = 'nat_exempt';

/** Protocol numbers (IANA): names would need /etc/protocols. */
const TCP = 6;
const UDP = 17;

/** NF_IP_PRI_NAT_SRC: where source addresses are translated. */
const SOURCE_NAT_PRIORITY = 100;

/** The table that masquerades packets of a family. One per family, as kernels before 5.2 have no NAT in `inet` tables. */
export function masqueradeTableName(family: Masquerade['family']): TableName {
  return { family: PROTOCOL[family], name: 'podwire' };
}

/**
 * The table that carries out a plan:
 *
 *     ip saddr @nat_sources ip daddr != @nat_exempt [oifname NAME] [meta l4proto { tcp, udp }] masquerade [to :PORTS] fully-random
 *
 * Ports are chosen at random. Otherwise the kernel drops packets when it translates two flows of one pod at once, such as the two
 * queries of a resolver.
 */
export function masqueradeTable(plan: Masquerade): NftTable {
  const protocol = PROTOCOL[plan.family];
  const base = [
    match(payload(protocol, 'saddr'), '==', `@${SOURCES}`),
    match(payload(protocol, 'daddr'), '!=', `@${EXEMPT}`),
  ];
  const outgoing: readonly (readonly JsonObject[])[] =
    plan.interfaces.length === 0 ? [[]] : plan.interfaces.map((name) => [match(meta('oifname'), '==', name)]);
  const rules = outgoing.flatMap((by) => finalStatements(plan).map((ending) => [...base, ...by, ...ending]));
  return {
    ...masqueradeTableName(plan.family),
    sets: [addressSet(plan, SOURCES), addressSet(plan, EXEMPT)],
    chains: [
      {
        name: 'nat_postrouting',
        hook: { type: 'nat', name: 'postrouting', priority: SOURCE_NAT_PRIORITY },
        rules,
      },
    ],
  };
}

function addressSet({ family, sources, exempt }: Masquerade, name: typeof SOURCES | typeof EXEMPT): NftSet {
  const elements = (name === SOURCES ? sources : exempt).map(prefixJson);
  return { name, type: ADDRESS_TYPE[family], interval: true, elements };
}

/** Final statements for all other packets: statements with ports first, when ports are restricted. */
function finalStatements({ ports }: Masquerade): readonly (readonly JsonObject[])[] {
  const masquerade = (to: JsonObject): JsonObject => ({
    masquerade: { ...to, flags: 'fully-random' },
  });
  const any = [masquerade({})];
  if (!ports) return [any];
  const withPorts = match(meta('l4proto'), '==', { set: [TCP, UDP] });
  const port = ports.first === ports.last ? ports.first : { range: [ports.first, ports.last] };
  return [[withPorts, masquerade({ port })], any];
}

interface MasqueraderOptions extends Omit<TableReconcilerOptions, 'table'> {
  readonly settings: MasqueradeSettings;
}

/**
 * Reconciles the tables `ip podwire` and `ip6 podwire`, which give packets from pools with `natOutgoing` the node's address. A
 * family without such a pool has no table. On failure pods run without masquerading, and {@link conditions} has the reason.
 */
export class Masquerader implements Follower {
  readonly #settings: MasqueradeSettings;
  readonly #reconcilers: Readonly<Record<Family, TableReconciler>>;
  #plans: Readonly<Record<Family, Masquerade | undefined>> | undefined;

  constructor({ settings, ...options }: MasqueraderOptions) {
    this.#settings = settings;
    const reconcilerOf = (family: Family) => new TableReconciler({ ...options, table: masqueradeTableName(family) });
    this.#reconcilers = { 4: reconcilerOf(4), 6: reconcilerOf(6) };
  }

  follow(view: ClusterView, change: ClusterChange): void {
    // Blocks do not affect masquerading.
    if (this.#plans && !change.hasOtherChanges) return;
    const plans = planMasquerade(view, this.#settings);
    this.#plans = plans;
    for (const family of FAMILIES) {
      const plan = plans[family];
      this.#reconcilers[family].request(plan ? masqueradeTable(plan) : 'absent');
    }
  }

  /** Conditions; empty while both tables are as wanted. */
  conditions(): readonly Condition[] {
    return FAMILIES.flatMap((family) => {
      const effect = `IPv${family} packets from pools with natOutgoing leave with the pods’ addresses`;
      return this.#reconcilers[family].conditions({ reason: 'MasqueradeUnavailable' }, effect);
    });
  }

  async stop(): Promise<void> {
    await Promise.all(FAMILIES.map((family) => this.#reconcilers[family].stop()));
  }
}
