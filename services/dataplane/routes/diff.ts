import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, prefixOf, splitCidr, type Prefix } from '@podwire/shared/net/prefix';

import type { ClusterNode } from '../cluster/cluster.js';
import { forwardingKey, neighbourKey, type NodeStateCache } from './node-state-cache.js';
import {
  equalRoutes,
  kindOfTunnel,
  TUNNEL_DEVICES,
  type NodeAbilities,
  type ObservedDevice,
  type ObservedRoute,
} from './observed.js';
import type { DeviceChange, NodeStep } from './step.js';
import type { NodeFacts, NodeRoute, RoutingMode, WantedNode, WantedTunnel } from './wanted.js';

/**
 * Pure planning from the known to the wanted state of the node's kernel: steps in an order that the kernel accepts, additions
 * before deletions. In three parts, because changing a device changes the objects on it: after the steps of {@link diffDevices}
 * the kernel is read again before the other parts are planned.
 */

/** Devices to create, recreate, or change. Surplus ones come last: {@link diffSurplus}. */
export function diffDevices(wanted: WantedNode, known: NodeStateCache): NodeStep[] {
  return wanted.tunnels.flatMap((tunnel) => {
    const found = known.devices.get(tunnel.name);
    // The kernel cannot create it yet.
    if (tunnel.kind === 'vxlan' && tunnel.parent !== undefined && !known.devices.has(tunnel.parent)) return [];
    if (!found) return creationSteps(tunnel);
    if (!isOwnDevice(found)) return [];
    if (!isSameTunnel(tunnel, found)) return [{ type: 'device-delete', name: tunnel.name }, ...creationSteps(tunnel)];
    return change(tunnel, found);
  });
}

/** Whether a device with one of Podwire's names has the kind that Podwire gives it; any other is kept. */
export function isOwnDevice({ name, kind }: ObservedDevice): boolean {
  return TUNNEL_DEVICES.includes(name) && kind === kindOfTunnel(name);
}

/** Adds missing objects on the devices, and writes settings. In this order: addresses, neighbours and forwarding, settings. */
export function diffDeviceObjects(wanted: WantedNode, known: NodeStateCache): NodeStep[] {
  return [...missingAddresses(wanted, known), ...missingPeers(wanted, known), ...differingSysctls(wanted, known)];
}

/** Deletes surplus objects on the devices, and surplus devices. To be applied after everything else. */
export function diffSurplus(wanted: WantedNode, known: NodeStateCache): NodeStep[] {
  const peers = new Set(wanted.peers.map(({ device, tunnelAddress: address }) => neighbourKey({ device, address })));
  const macs = new Map(wanted.peers.map((peer) => [forwardingKey(peer), peer.nodeAddress]));
  const tunnels = new Map(wanted.tunnels.map((tunnel) => [tunnel.name, tunnel]));
  const neighbours = [...known.neighbours.entries()].flatMap(([key, neighbour]): NodeStep[] =>
    peers.has(key) ? [] : [{ type: 'neighbour-delete', ...neighbour }],
  );
  const forwarding = [...known.forwarding.entries()].flatMap(([key, entries]) =>
    entries
      .filter((entry) => entry.nodeAddress !== macs.get(key))
      .map((entry): NodeStep => ({ type: 'forwarding-delete', ...entry })),
  );
  const own = TUNNEL_DEVICES.flatMap((name) => known.devices.get(name) ?? []).filter(isOwnDevice);
  const addresses = own.flatMap(({ name: device }) =>
    [...(known.addresses.get(device) ?? [])]
      .filter((address) => tunnels.has(device) && address !== tunnels.get(device)?.address)
      .map((address): NodeStep => ({ type: 'address-delete', device, address })),
  );
  const devices = own
    .filter(({ name }) => !tunnels.has(name))
    .map(({ name }): NodeStep => ({ type: 'device-delete', name }));
  return [...neighbours, ...forwarding, ...addresses, ...devices];
}

/** Steps for routes to some destinations: additions, replacements and deletions. */
interface RouteSteps {
  /** Deletions of routes that the kernel cannot replace; they are added again. To be applied before all other steps. */
  readonly deletedFirst: NodeStep[];
  readonly set: NodeStep[];
  readonly deleted: NodeStep[];
}

/**
 * Plans routes to the destinations, wanted or existing. Skips a route whose device is missing or down, or whose place a foreign
 * route occupies.
 */
export function diffRoutes(destinations: Iterable<string>, wanted: WantedNode, known: NodeStateCache): RouteSteps {
  const steps: RouteSteps = { deletedFirst: [], set: [], deleted: [] };
  for (const destination of destinations) {
    const route = wanted.routes.get(destination);
    const found = known.routes.get(destination);
    const remove = () => found && steps.deleted.push({ type: 'route-delete', route: withMetric(found) });
    if (!route) remove();
    else if (equalRoutes(route, found)) continue;
    else if (route.device !== undefined && !known.isUp(route.device)) continue;
    // Replacing it would replace the foreign route: the kernel takes the first of that destination.
    else if (known.conflictingRoutes.has(destination)) remove();
    else if (found && isReplacementRefused(found, route)) {
      steps.deletedFirst.push({ type: 'route-delete', route: withMetric(found) });
      steps.set.push({ type: 'route-add', route });
    } else steps.set.push({ type: found ? 'route-replace' : 'route-add', route });
  }
  return { ...steps, set: groupByGateway(steps.set) };
}

/**
 * Groups routes by gateway. Linux keeps the shared part of IPv4 routes in a hash table that ignores the gateway (fib_info_hashfn,
 * net/ipv4/fib_semantics.c), so it walks a list for each route, latest first: with 10,000 routes by 5,000 gateways half a second
 * of CPU time.
 */
function groupByGateway(steps: readonly NodeStep[]): NodeStep[] {
  const groups = new Map<string, NodeStep[]>();
  for (const step of steps) {
    const gateway = ('route' in step ? step.route.gateway : undefined) ?? '';
    const group = groups.get(gateway);
    if (group) group.push(step);
    else groups.set(gateway, [step]);
  }
  return [...groups.values()].flat();
}

/**
 * IPv6 refuses a gateway on a device while a route leads to it by another device (ip6_route_check_nh_onlink, net/ipv6/route.c). A
 * node's tunnel address is usually in one of its own blocks, so routes of blocks that move into the tunnel block each other.
 */
function isReplacementRefused(found: ObservedRoute, route: NodeRoute): boolean {
  if (!route.destination.includes(':') || route.gateway === undefined || route.device === undefined) return false;
  return TUNNEL_DEVICES.includes(route.device) && found.device !== undefined && found.device !== route.device;
}

/** Deletes Podwire's routes that are not wanted. */
export function diffOrphanRoutes({ orphanRoutes }: NodeStateCache): NodeStep[] {
  return orphanRoutes.map((route): NodeStep => ({ type: 'route-delete', route }));
}

function withMetric<Route extends { readonly destination: string }>(route: Route): Route & { metric: number } {
  return { ...route, metric: route.destination.includes(':') ? 1024 : 0 };
}

function creationSteps(tunnel: WantedTunnel): NodeStep[] {
  return [
    { type: 'device-add', tunnel },
    { type: 'device-set', name: tunnel.name, changeSteps: { up: true } },
  ];
}

/** Whether a device can be changed to the wanted state without recreating it. */
function isSameTunnel(wanted: WantedTunnel, { tunnel }: ObservedDevice): boolean {
  if (tunnel?.kind !== wanted.kind || tunnel.local !== wanted.local || tunnel.remote !== undefined) return false;
  if (wanted.kind === 'ipip' || tunnel.kind === 'ipip') return true;
  return (
    tunnel.vni === wanted.vni &&
    tunnel.port === wanted.port &&
    tunnel.parent === wanted.parent &&
    !tunnel.isLearning &&
    !tunnel.isExternal
  );
}

function change(wanted: WantedTunnel, found: ObservedDevice): NodeStep[] {
  const changes: DeviceChange = {
    ...(wanted.kind === 'vxlan' && found.mac !== wanted.mac ? { mac: wanted.mac } : {}),
    ...(found.mtuBytes === wanted.mtuBytes ? {} : { mtuBytes: wanted.mtuBytes }),
    ...(found.up ? {} : { up: true }),
  };
  return Object.keys(changes).length === 0 ? [] : [{ type: 'device-set', name: wanted.name, changeSteps: changes }];
}

function missingAddresses({ tunnels }: WantedNode, known: NodeStateCache): NodeStep[] {
  return tunnels.flatMap(({ name: device, address }): NodeStep[] => {
    const found = known.devices.get(device);
    if (address === undefined || !found || !isOwnDevice(found) || known.hasAddress(device, address)) return [];
    return [{ type: 'address-add', device, address }];
  });
}

function missingPeers({ peers }: WantedNode, known: NodeStateCache): NodeStep[] {
  return peers.flatMap(({ device, tunnelAddress: address, mac, nodeAddress }): NodeStep[] => {
    if (!known.isUp(device)) return [];
    const isNeighbour = known.neighbours.get(neighbourKey({ device, address }))?.mac === mac;
    const entries = known.forwarding.get(forwardingKey({ device, mac })) ?? [];
    const isForwarded = entries.some((entry) => entry.nodeAddress === nodeAddress);
    return [
      ...(isForwarded ? [] : [{ type: 'forwarding-set', device, mac, nodeAddress } as const]),
      ...(isNeighbour ? [] : [{ type: 'neighbour-set', device, address, mac } as const]),
    ];
  });
}

function differingSysctls({ sysctls }: WantedNode, known: NodeStateCache): NodeStep[] {
  return sysctls.flatMap(({ key, value }): NodeStep[] =>
    known.sysctls.get(key.join('/')) === value ? [] : [{ type: 'sysctl-write', key, value }],
  );
}

/** MTU in bytes when no interface has the node's address: Ethernet's. */
const UNKNOWN_MTU_BYTES = 1500;

interface FactsContext {
  readonly known: Pick<NodeStateCache, 'devices' | 'addresses' | 'routed'>;
  /** This node as last received from IPAM. */
  readonly self: Pick<ClusterNode, 'ipv4' | 'ipv6'> | undefined;
  readonly abilities: NodeAbilities;
  readonly routing: RoutingMode;
}

/**
 * Facts about this node that routes depend on, from the kernel's known state. Tunnels use the least MTU of the node's interfaces.
 */
export function factsOf({ known, self, abilities, routing }: FactsContext): NodeFacts {
  const parents: Record<Family, string | undefined> = {
    4: parentOf(self?.ipv4?.address, known),
    6: parentOf(self?.ipv6?.address, known),
  };
  const mtus = Object.values(parents).flatMap((name) =>
    name === undefined ? [] : (known.devices.get(name)?.mtuBytes ?? []),
  );
  return {
    parents,
    mtuBytes: mtus.length === 0 ? UNKNOWN_MTU_BYTES : Math.min(...mtus),
    ...abilities,
    routing,
    routed: known.routed,
    connected: connectedSubnets(known),
  };
}

/** Subnets of the addresses of the node's interfaces, except Podwire's tunnels, and single addresses. */
function connectedSubnets({ devices, addresses }: FactsContext['known']): readonly Prefix[] {
  const subnets = new Map<string, Prefix>();
  for (const [name, cidrs] of addresses) {
    const device = devices.get(name);
    if (!device || isOwnDevice(device)) continue;
    for (const cidr of cidrs) {
      const parts = cidr.endsWith('/32') || cidr.endsWith('/128') ? undefined : splitCidr(cidr);
      const subnet = parts && prefixOf(parts.address, parts.length);
      if (subnet) subnets.set(formatPrefix(subnet), subnet);
    }
  }
  return [...subnets.values()].toSorted(comparePrefixes);
}

/** The interface that has an address. */
function parentOf(address: Address | undefined, known: FactsContext['known']): string | undefined {
  if (!address) return undefined;
  const text = formatAddress(address);
  for (const [name, addresses] of known.addresses) {
    const device = known.devices.get(name);
    if (!device || isOwnDevice(device)) continue;
    for (const cidr of addresses) if (isAddressOf(cidr, text, address)) return name;
  }
  return undefined;
}

function isAddressOf(cidr: string, text: string, address: Address): boolean {
  if (cidr.startsWith(`${text}/`)) return true;
  const parts = address.family === 6 && cidr.includes(':') ? splitCidr(cidr) : undefined;
  return parts?.address.value === address.value;
}
