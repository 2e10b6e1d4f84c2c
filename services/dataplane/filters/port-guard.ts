import { HOST_INTERFACE_PREFIX } from '@podwire/shared/attachment/names';
import { FAMILIES, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { compareTexts } from '@podwire/shared/words/order';

import type { ClusterChange, ClusterNode, ClusterView, Follower } from '../cluster/cluster.js';
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
  type Json,
  type JsonObject,
  type NftTable,
  type TableName,
} from '../nft/table.js';

export const PORT_TABLE: TableName = { family: 'inet', name: 'podwire_ports' };

const NODES: Readonly<Record<Family, string>> = { 4: 'nodes4', 6: 'nodes6' };

/** Interfaces of pods: Podwire's, and interfaces that Calico's plugin names. */
const POD_INTERFACES = [`${HOST_INTERFACE_PREFIX}*`, 'cali*'];

/** Elements of the sets, by family. */
type NodeAddresses = Readonly<Record<Family, readonly string[]>>;

interface PortGuardOptions extends Omit<TableReconcilerOptions, 'table'> {
  /** TCP ports, sorted; none for no table. */
  readonly ports: readonly number[];
}

/**
 * Reconciles the table `inet podwire_ports`: pods cannot reach some TCP ports of nodes. Packets to another node are dropped at the
 * node of their pod, as the other node may see this node's address as their source. Until the cluster is known, the rules of the
 * previous process stay.
 */
export class PortGuard implements Follower {
  readonly #ports: readonly number[];
  readonly #reconciler: TableReconciler;
  #isFollowing = false;

  constructor({ ports, ...options }: PortGuardOptions) {
    this.#ports = ports.toSorted((a, b) => a - b);
    this.#reconciler = new TableReconciler({ ...options, table: PORT_TABLE });
  }

  follow({ cluster }: ClusterView, change: ClusterChange): void {
    // A change of blocks does not change the nodes.
    if (this.#isFollowing && !change.hasOtherChanges) return;
    this.#isFollowing = true;
    const addresses = [...cluster.nodes.values()].flatMap(addressesOfNode);
    const textsOf = (family: Family) => distinct(addresses.filter((each) => each.family === family).map(formatAddress));
    const table = this.#ports.length > 0 ? portTable(this.#ports, { 4: textsOf(4), 6: textsOf(6) }) : 'absent';
    this.#reconciler.request(table);
  }

  /** Conditions; empty while the table is as wanted. */
  conditions(): readonly Condition[] {
    const effect = 'nftables cannot filter packets from pods, so pods reach the metrics of nodes and podwire-ipam';
    return this.#reconciler.conditions({ reason: 'PortGuardUnavailable' }, effect);
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#reconciler.stop();
  }
}

/**
 * The table that drops packets of pods to ports of nodes, after the translation of destinations:
 *
 *     iifname "podw*" ip daddr @nodes4 tcp dport { 9091, 9094 } counter drop
 *
 * Any address of this node counts for packets to the node itself.
 */
function portTable(ports: readonly number[], nodes: NodeAddresses): NftTable {
  const right: Json = ports.length === 1 ? (ports[0] ?? 0) : { set: ports };
  const isPort = match({ payload: { protocol: 'tcp', field: 'dport' } }, '==', right);
  const chain = (name: 'input' | 'forward', destinations: readonly (readonly JsonObject[])[]) => ({
    name: `ports_${name}`,
    hook: { type: 'filter', name, priority: FILTER_PRIORITY },
    rules: POD_INTERFACES.flatMap((device) =>
      destinations.map((to) => [match(meta('iifname'), '==', device), ...to, isPort, ...COUNTED_DROP]),
    ),
  });
  const isNode = (family: Family) => match(payload(PROTOCOL[family], 'daddr'), '==', `@${NODES[family]}`);
  return {
    ...PORT_TABLE,
    sets: FAMILIES.map((family) => ({
      name: NODES[family],
      type: ADDRESS_TYPE[family],
      interval: false,
      elements: nodes[family],
    })),
    chains: [chain('input', [[]]), chain('forward', [[isNode(4)], [isNode(6)]])],
  };
}

/** All known addresses of a node: its processes listen at each of them. */
function addressesOfNode(node: ClusterNode): readonly Address[] {
  const { ipv4, ipv6, vxlanIpv4, vxlanIpv6, ipip, interfaceAddresses = [] } = node;
  const single = [ipv4?.address, ipv6?.address, vxlanIpv4?.address, vxlanIpv6?.address, ipip];
  return [...single.flatMap((address) => address ?? []), ...interfaceAddresses];
}

function distinct(texts: readonly string[]): readonly string[] {
  return [...new Set(texts)].toSorted(compareTexts);
}
