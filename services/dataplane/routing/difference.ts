import type { ClusterNode, ClusterPool, NodeAddress, VxlanEnd } from '../cluster/cluster.js';
import type { NodeRoute } from '../routes/wanted.js';

/** Keys whose value came, went or became another. Values that are the same object are not looked into. */
export function* changedKeys<V>(
  before: ReadonlyMap<string, V>,
  after: ReadonlyMap<string, V>,
  equal: (a: V | undefined, b: V | undefined) => boolean,
): Generator<string> {
  for (const [key, value] of after) if (!equal(before.get(key), value)) yield key;
  for (const key of before.keys()) if (!after.has(key)) yield key;
}

export function equalNodes(a: ClusterNode | undefined, b: ClusterNode | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.name === b.name &&
    equalNodeAddresses(a.ipv4, b.ipv4) &&
    equalNodeAddresses(a.ipv6, b.ipv6) &&
    equalEnds(a.vxlanIpv4, b.vxlanIpv4) &&
    equalEnds(a.vxlanIpv6, b.vxlanIpv6) &&
    a.ipip?.value === b.ipip?.value &&
    a.asNumber === b.asNumber
  );
}

export function equalPools(a: ClusterPool | undefined, b: ClusterPool | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.name === b.name &&
    a.cidr.family === b.cidr.family &&
    a.cidr.value === b.cidr.value &&
    a.cidr.length === b.cidr.length &&
    a.encapsulation === b.encapsulation &&
    a.natOutgoing === b.natOutgoing &&
    a.loadBalancerOnly === b.loadBalancerOnly
  );
}

export function equalRoutes(a: NodeRoute | undefined, b: NodeRoute | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.destination === b.destination &&
    a.type === b.type &&
    a.device === b.device &&
    a.gateway === b.gateway &&
    a.onlink === b.onlink &&
    a.source === b.source
  );
}

function equalNodeAddresses(a: NodeAddress | undefined, b: NodeAddress | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return (
    a.address.value === b.address.value && a.subnet.value === b.subnet.value && a.subnet.length === b.subnet.length
  );
}

function equalEnds(a: VxlanEnd | undefined, b: VxlanEnd | undefined): boolean {
  if (a === b || !a || !b) return a === b;
  return a.address?.value === b.address?.value && a.mac === b.mac;
}
