import { parseAddress } from '@podwire/shared/net/address';

import { formatList, type Condition } from '../conditions/conditions.js';
import { isRouteAsWanted, type StepBackoff } from './convergence.js';
import { diffDevices, isOwnDevice } from './diff.js';
import { forwardingKey, neighbourKey, type NodeStateCache } from './node-state-cache.js';
import { equalRoutes, ownerOf, type ObservedDevice } from './observed.js';
import { formatNodeRoute, stepKey } from './step.js';
import { VXLAN_DEVICE, type WantedNode, type WantedTunnel } from './wanted.js';

/** How far the node's kernel matches the wanted state. */
export interface NodeStatus {
  /**
   * `waiting`: no complete view yet; `silent`: the kernel cannot be read, or a defect interrupts the loop; `reconciling`: there
   * are differences.
   */
  readonly state: 'waiting' | 'silent' | 'reconciling' | 'as-wanted';
  /** The wanted ones; none before the first complete view. */
  readonly tunnels: readonly WantedTunnel[];
  /** Counts; undefined before the first complete view. */
  readonly wanted: NodeCounts | undefined;
  /** The wanted ones that match; undefined while unknown. */
  readonly present: NodeCounts | undefined;
  readonly conditions: readonly Condition[];
  /** Last full reading of the kernel, in milliseconds since the epoch; undefined: never. */
  readonly checkedAtMs: number | undefined;
  /** Changes of Podwire's state by other programs since the service started. */
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

/** The wanted objects that are known to match. */
export function countPresent(wanted: WantedNode, known: NodeStateCache): NodeCounts {
  const missingTunnels = new Set(diffDevices(wanted, known).map(stepKey));
  let routes = 0;
  for (const destination of wanted.routes.keys()) if (isRouteAsWanted(destination, wanted, known)) routes++;
  const peers = wanted.peers.filter(
    ({ device, tunnelAddress: address, mac, nodeAddress }) =>
      known.neighbours.get(neighbourKey({ device, address }))?.mac === mac &&
      known.forwarding.get(forwardingKey({ device, mac }))?.some((entry) => entry.nodeAddress === nodeAddress),
  );
  const tunnels = wanted.tunnels.filter(({ name }) => known.isUp(name) && !missingTunnels.has(`device ${name}`));
  return { tunnels: tunnels.length, peers: peers.length, routes };
}

interface ConditionsContext {
  readonly known: NodeStateCache;
  readonly attempts: StepBackoff;
  /** Interfaces with the node's addresses, which routes use directly or by tunnels. */
  readonly parents: readonly string[];
}

/** Why the kernel does not match: conflicting foreign objects, missing interfaces, and refusals of the kernel. */
export function kernelConditions(wanted: WantedNode, context: ConditionsContext): Condition[] {
  const { known, attempts } = context;
  return [
    ...conflictingRouteConditions(wanted, known),
    ...conflictingDeviceConditions(wanted, known),
    ...unavailableDeviceConditions(wanted, context),
    ...(attempts.refusals().length > 0 ? coveredGatewayConditions(wanted, known) : []),
    ...attempts.refusals().map(({ example, count, failure }): Condition => {
      const more = count > 1 ? ` (and ${count - 1} more)` : '';
      return { reason: 'KernelRefuses', message: `${example}${more}: ${failure.message}; retrying` };
    }),
  ];
}

function conflictingRouteConditions(
  { routes }: WantedNode,
  { conflictingRoutes, routes: found }: NodeStateCache,
): Condition[] {
  return [...conflictingRoutes.values()].flatMap((foreign) => {
    const { destination } = foreign;
    const wanted = routes.get(destination);
    const own = found.get(destination);
    if (!wanted || (own && equalRoutes(own, wanted))) return [];
    const whose =
      ownerOf(foreign) === 'pod' ? 'to a pod of this node' : `of another program (protocol ${foreign.protocol})`;
    const existing = formatNodeRoute(foreign).replace(/ proto \d+/, '');
    const message =
      `route to ${destination}: a route ${whose} exists and is kept (${existing}); delete it, or configure that program to ` +
      'leave out the pools’ addresses';
    return [{ reason: 'RouteTaken', message }];
  });
}

/**
 * IPv6 refuses a gateway on a tunnel while a route leads to it by another device (ip6_route_check_nh_onlink). A foreign route that
 * covers all pods has this effect, and must be deleted before the first route into the tunnel.
 */
function coveredGatewayConditions({ routes }: WantedNode, known: NodeStateCache): Condition[] {
  const destinations = new Map<string, string[]>();
  for (const route of routes.values()) {
    const found = known.routes.get(route.destination);
    if (route.device !== VXLAN_DEVICE[6] || route.gateway === undefined || (found && equalRoutes(found, route)))
      continue;
    const gateway = parseAddress(route.gateway);
    const covering = gateway && known.routedBy(gateway);
    if (covering === undefined) continue;
    destinations.set(covering, [...(destinations.get(covering) ?? []), route.destination]);
  }
  return [...destinations].map(([covering, missing]) => ({
    reason: 'TunnelGatewayCovered',
    message:
      `no route to ${formatList(missing)} by ${VXLAN_DEVICE[6]}: another program’s route to ${covering} covers the tunnel ` +
      'addresses of other nodes; delete it, or exclude the pools from it',
  }));
}

function conflictingDeviceConditions({ tunnels }: WantedNode, { devices }: NodeStateCache): Condition[] {
  return tunnels.flatMap((tunnel) => {
    const { name, kind } = tunnel;
    const found = devices.get(name);
    const other = found ? undefined : [...devices.values()].find((device) => isSameVxlan(tunnel, device));
    if (other) {
      const message =
        `interface ${other.name} of another program has the VXLAN network identifier and port of ${name}, which cannot be ` +
        `created beside it; if that program is gone, run: ip link delete ${other.name}`;
      return [{ reason: 'DeviceTaken', message }];
    }
    if (!found || isOwnDevice(found)) return [];
    const message = `interface ${name}: not a ${kind} device (${found.kind ?? 'physical'}); delete or rename it`;
    return [{ reason: 'DeviceTaken', message }];
  });
}

/** The kernel refuses a second VXLAN device with the same identifier and port, over the same family. */
function isSameVxlan(wanted: WantedTunnel, { tunnel }: ObservedDevice): boolean {
  if (wanted.kind !== 'vxlan' || tunnel?.kind !== 'vxlan') return false;
  const isSameFamily = (tunnel.local?.includes(':') ?? false) === wanted.local.includes(':');
  return isSameFamily && tunnel.vni === wanted.vni && tunnel.port === wanted.port;
}

/**
 * Interfaces that routes or tunnels need, and that are missing or down.
 * @returns how many routes need each
 */
export function unavailableDevices(
  { tunnels, routes }: WantedNode,
  { known, parents }: Pick<ConditionsContext, 'known' | 'parents'>,
): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  const devices = tunnels.flatMap((tunnel) => [tunnel.name, parentOf(tunnel) ?? tunnel.name]);
  // There are many routes, and usually nothing to count.
  if ([...devices, ...parents].every((device) => known.isUp(device))) return counts;
  for (const { device } of routes.values()) {
    if (device !== undefined && !known.isUp(device)) counts.set(device, (counts.get(device) ?? 0) + 1);
  }
  for (const tunnel of tunnels) {
    const parent = parentOf(tunnel);
    if (parent !== undefined && !known.devices.has(parent)) counts.set(parent, counts.get(parent) ?? 0);
  }
  return counts;
}

function unavailableDeviceConditions(wanted: WantedNode, context: ConditionsContext): Condition[] {
  return [...unavailableDevices(wanted, context)].map(([device, count]) => {
    const state = context.known.devices.has(device) ? 'is down' : 'does not exist';
    const tunnels = wanted.tunnels.filter((tunnel) => parentOf(tunnel) === device);
    const dependents = [
      ...(count > 0 ? [`${count} routes`] : []),
      ...(tunnels.length > 0 ? [formatList(tunnels.map(({ name }) => name))] : []),
    ].join(' and ');
    return { reason: 'DeviceUnavailable', message: `interface ${device} ${state}: ${dependents} wait for it` };
  });
}

function parentOf(tunnel: WantedTunnel): string | undefined {
  return tunnel.kind === 'vxlan' ? tunnel.parent : undefined;
}
