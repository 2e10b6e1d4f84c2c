import { FAMILIES, familyBits, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { ClusterPool } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import type { BaseChain } from '../nft/nft.js';
import type { ForwardedPacket, Ruleset } from '../nft/ruleset.js';
import { formatTableName, PROTOCOL, type TableName } from '../nft/table.js';

/** How packets of pods leave the node and reach it. */
export interface ForwardRoutes {
  readonly pools: readonly ClusterPool[];
  /** Interface by which packets of a pool reach other nodes; undefined while unknown. */
  readonly peerInterface: (pool: ClusterPool) => string | undefined;
  /** Interface with the node's address of a family; undefined while unknown. */
  readonly uplink: (family: Family) => string | undefined;
  /** Undefined while unknown. */
  readonly nodeAddress: (family: Family) => Address | undefined;
}

/** Packets by the same interfaces. A firewall may drop some: it is reported when it drops all. */
interface Flow {
  readonly input: string;
  readonly output: string;
  readonly ends: readonly Pick<ForwardedPacket, 'source' | 'destination'>[];
}

/** Tables that drop no packet of a pod: Podwire's own, and kube-proxy's, which can be large. */
export const SKIPPED_TABLES = [
  ...['podwire', 'podwire_hostports', 'podwire_tunnels', 'podwire_neighbours', 'podwire_ports', 'podwire_policy'],
  'kube-proxy',
];

/** The chain of iptables for forwarded packets, which the iptables of nftables shares with `nft`. */
export const IPTABLES = { name: 'filter', chain: 'FORWARD' } as const;

/** Hosts of the internet: root servers of DNS, which no list of private or reserved addresses has. */
const INTERNET: Readonly<Record<Family, Address | undefined>> = {
  4: parseAddress('198.41.0.4'),
  6: parseAddress('2001:503:ba3e::2:30'),
};

/** The condition of a base chain that drops packets of pods; undefined: they pass. */
export function dropCondition(chain: BaseChain, ruleset: Ruleset, routes: ForwardRoutes): Condition | undefined {
  const { table, name, hook } = chain;
  const families = FAMILIES.filter((family) => table.family === 'inet' || table.family === PROTOCOL[family]);
  for (const pool of routes.pools.filter(({ cidr }) => families.includes(cidr.family))) {
    for (const { input, output, ends } of flowsOf(pool, routes)) {
      // The kernel chooses the output after prerouting.
      const way = { input, output: hook === 'prerouting' ? '' : output };
      const causes = ends.map((addresses) => ruleset.dropOf(name, { ...way, ...addresses }));
      if (causes[0] === undefined || causes.includes(undefined)) continue;
      const [from, to] = [input, output].map((device) => device.replace(/^podw\d$/, 'podw*'));
      const message =
        `IPv${pool.cidr.family} packets of pods from ${from} to ${to} are dropped by the firewall: ` +
        `chain ${name} of table ${formatTableName(table)} (${causes[0]}); run: ${cureOf(chain, pool)}`;
      return { reason: 'ForwardDropped', message };
    }
  }
  return undefined;
}

/**
 * Packets of a pool's pods that the node forwards: between two of its pods, to another node, from there, and to the outside if
 * the pool leads there.
 */
function flowsOf(pool: ClusterPool, { peerInterface, uplink: uplinkOf, nodeAddress }: ForwardRoutes): readonly Flow[] {
  const { cidr, natOutgoing } = pool;
  const [peer, uplink] = [peerInterface(pool), uplinkOf(cidr.family)];
  const [source, destination] = [addressIn(cidr, 1n), addressIn(cidr, 2n)];
  const between = (input: string, output: string) => ({ input, output, ends: [{ source, destination }] });
  const outside = [INTERNET[cidr.family], nodeAddress(cidr.family)].filter((each) => each !== undefined);
  return [
    between('podw1', 'podw2'),
    ...(peer === undefined ? [] : [between('podw1', peer), between(peer, 'podw1')]),
    ...(uplink === undefined || !natOutgoing
      ? []
      : [{ input: 'podw1', output: uplink, ends: outside.map((to) => ({ source, destination: to })) }]),
  ];
}

/** Whether iptables owns a table, so that podwire-node accepts packets of pods in its chain FORWARD. */
export function isIptables({ family, name }: TableName): boolean {
  return family !== 'inet' && name === IPTABLES.name;
}

function addressIn({ family, value, length }: Prefix, place: bigint): Address {
  const size = 1n << BigInt(familyBits(family) - length);
  return { family, value: value + (place < size ? place : 0n) };
}

/** The commands with which an operator lets packets of pods pass. */
function cureOf({ table, name, hook }: BaseChain, { cidr }: ClusterPool): string {
  if (table.name === 'firewalld')
    return `firewall-cmd --permanent --zone=trusted --add-source=${formatPrefix(cidr)} && firewall-cmd --reload`;
  if (isIptables(table) && name === IPTABLES.chain) {
    const program = table.family === 'ip6' ? 'ip6tables' : 'iptables';
    return `${program} -I FORWARD -i podw+ -j ACCEPT && ${program} -I FORWARD -o podw+ -j ACCEPT`;
  }
  const insert = (match: string) => `nft insert rule ${formatTableName(table)} ${name} ${match} accept`;
  const toPods = hook === 'prerouting' ? `${PROTOCOL[cidr.family]} daddr ${formatPrefix(cidr)}` : `oifname '"podw*"'`;
  return `${insert(`iifname '"podw*"'`)} && ${insert(toPods)}`;
}
