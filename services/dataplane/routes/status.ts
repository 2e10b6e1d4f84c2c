import { isRouteReached } from './convergence.js';
import { diffDevices } from './diff.js';
import { forwardingKey, neighbourKey, type KnownNode } from './known-node.js';
import { stepKey } from './step.js';
import type { Condition, WantedNode, WantedTunnel } from './wanted.js';

/** How far the node's kernel is what is wanted of it. */
export interface NodeStatus {
  /**
   * `waiting`: no complete view yet; `silent`: the kernel cannot be read, or the loop is cut off by a defect; `reconciling`: something
   * is not as wanted.
   */
  readonly state: 'waiting' | 'silent' | 'reconciling' | 'as-wanted';
  /** What is wanted of them; none before the first complete view. */
  readonly tunnels: readonly WantedTunnel[];
  /** Undefined before the first complete view. */
  readonly wanted: NodeCounts | undefined;
  /** Of what is wanted: what is there as wanted; undefined while that is not known. */
  readonly present: NodeCounts | undefined;
  readonly conditions: readonly Condition[];
  /** When the kernel was last read in full, in milliseconds since the epoch; undefined: never. */
  readonly checkedAtMs: number | undefined;
  /** What others changed of Podwire's since the service started. */
  readonly driftCount: number;
}

interface NodeCounts {
  readonly tunnels: number;
  readonly peers: number;
  readonly routes: number;
}

export function countWanted({ tunnels, peers, routes }: WantedNode): NodeCounts {
  return { tunnels: tunnels.length, peers: peers.length, routes: routes.size };
}

/** Of what is wanted: what is known to be there as wanted. */
export function countPresent(wanted: WantedNode, known: KnownNode): NodeCounts {
  const missingTunnels = new Set(diffDevices(wanted, known).map(stepKey));
  let routes = 0;
  for (const destination of wanted.routes.keys()) if (isRouteReached(destination, wanted, known)) routes++;
  const peers = wanted.peers.filter(
    ({ device, tunnelAddress: address, mac, nodeAddress }) =>
      known.neighbours.get(neighbourKey({ device, address }))?.mac === mac &&
      known.forwarding.get(forwardingKey({ device, mac }))?.some((entry) => entry.nodeAddress === nodeAddress),
  );
  const tunnels = wanted.tunnels.filter(({ name }) => known.isUp(name) && !missingTunnels.has(`device ${name}`));
  return { tunnels: tunnels.length, peers: peers.length, routes };
}
