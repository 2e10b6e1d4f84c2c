import type { ClusterPool } from '../cluster/cluster.js';
import type { NodeLink } from '../node/links.js';
import { encapsulationOf } from '../routes/block-routes.js';
import { isPodInterface, TUNNEL_DEVICES } from '../routes/observed.js';
import { OVERHEAD_BYTES } from '../routes/tunnels.js';

/**
 * Assumed of the node's network when no interface of it is known, in bytes: Ethernet's. Calico assumes 1460, for one provider's
 * network; there the interfaces have names that the setting's default knows, so that nothing has to be assumed.
 */
export const ASSUMED_MTU_BYTES = 1500;

/** What IPv4 asks of every link, in bytes (RFC 791); the kernel refuses less. */
const LEAST_MTU_BYTES = 68;

/** An MTU for pods, and where it comes from. */
export interface DetectedMtu {
  readonly mtuBytes: number;
  /** Name of the interface that limits it; undefined when there is none that counts. */
  readonly interfaceName: string | undefined;
  /** What the encapsulation of pools takes of it, in bytes. */
  readonly overheadBytes: number;
}

/**
 * The MTU of pods on this node: the smallest of the node's interfaces, minus what encapsulation adds. An interface counts when it is
 * up and its name fits; Podwire's own devices and pods' interfaces never do.
 * @param patterns - names, or their beginnings with a `*`
 * @param overheadBytes - the {@link mostOverhead} of the pools
 */
export function detectMtu(links: readonly NodeLink[], patterns: readonly string[], overheadBytes: number): DetectedMtu {
  const counting = links.filter(({ name, up }) => up && isNodeInterface(name, patterns));
  const smallest = counting.toSorted((a, b) => a.mtuBytes - b.mtuBytes)[0];
  return {
    mtuBytes: Math.max(LEAST_MTU_BYTES, (smallest?.mtuBytes ?? ASSUMED_MTU_BYTES) - overheadBytes),
    interfaceName: smallest?.name,
    overheadBytes,
  };
}

/** What most of some links have, in bytes: the lower where two are as many. Undefined where none of them is there. */
export function commonMtu(links: readonly NodeLink[], names: ReadonlySet<string>): number | undefined {
  const counts = new Map<number, number>();
  for (const { name, mtuBytes } of links) if (names.has(name)) counts.set(mtuBytes, (counts.get(mtuBytes) ?? 0) + 1);
  return [...counts].toSorted(([a, ofA], [b, ofB]) => ofB - ofA || a - b)[0]?.[0];
}

/** Whether a link, by its name, is one of those that the node has to the network. */
export function isNodeInterface(name: string, patterns: readonly string[]): boolean {
  if (name === 'lo' || TUNNEL_DEVICES.includes(name) || isPodInterface({ name, alias: null })) return false;
  return patterns.some((pattern) => (pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern));
}

/** The most that a pool's encapsulation takes of each packet, in bytes. */
export function mostOverhead(pools: readonly ClusterPool[]): number {
  return Math.max(0, ...pools.map(overheadOf));
}

/** What a pool's encapsulation takes of each packet, in bytes. Of IPv6 in IPIP there is none: such pools have no tunnel. */
function overheadOf(pool: ClusterPool): number {
  switch (encapsulationOf(pool)) {
    case 'none':
      return 0;
    case 'vxlan':
    case 'vxlan-cross-subnet':
      return OVERHEAD_BYTES.vxlan[pool.cidr.family];
    case 'ipip':
    case 'ipip-cross-subnet':
      return pool.cidr.family === 4 ? OVERHEAD_BYTES.ipip : 0;
  }
}
