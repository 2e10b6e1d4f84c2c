import {
  NODE_ROUTE_PROTOCOL,
  type DeviceAddress,
  type ObservedRoute,
  type PeerForwarding,
  type PeerNeighbour,
  type KernelRoute,
} from './observed.js';
import type { NodeRoute, NodeSysctl, WantedTunnel } from './wanted.js';

/** Changeable attributes of a device; absent ones stay unchanged. */
export interface DeviceChange {
  readonly up?: boolean;
  readonly mac?: string;
  readonly mtuBytes?: number;
}

/** One change of the node's kernel. Devices are given by name instead of index, as a plan may use devices that it creates. */
export type NodeStep =
  | { readonly type: 'device-add'; readonly tunnel: WantedTunnel }
  | { readonly type: 'device-set'; readonly name: string; readonly changeSteps: DeviceChange }
  | { readonly type: 'device-delete'; readonly name: string }
  | ({ readonly type: 'address-add' | 'address-delete' } & DeviceAddress)
  | ({ readonly type: 'neighbour-set' | 'neighbour-delete' } & PeerNeighbour)
  /** Setting replaces every other forwarding entry of the MAC address. */
  | ({ readonly type: 'forwarding-set' | 'forwarding-delete' } & PeerForwarding)
  | { readonly type: 'route-add' | 'route-replace'; readonly route: NodeRoute }
  | { readonly type: 'route-delete'; readonly route: ObservedRoute & Pick<KernelRoute, 'metric'> }
  | ({ readonly type: 'sysctl-write' } & NodeSysctl);

/** Kind of object, for counters. */
export type NodeObject = 'device' | 'address' | 'neighbour' | 'forwarding' | 'route' | 'sysctl';

const OBJECTS: Readonly<Record<NodeStep['type'], NodeObject>> = {
  'device-add': 'device',
  'device-set': 'device',
  'device-delete': 'device',
  'address-add': 'address',
  'address-delete': 'address',
  'neighbour-set': 'neighbour',
  'neighbour-delete': 'neighbour',
  'forwarding-set': 'forwarding',
  'forwarding-delete': 'forwarding',
  'route-add': 'route',
  'route-replace': 'route',
  'route-delete': 'route',
  'sysctl-write': 'sysctl',
};

export function objectOf(step: NodeStep): NodeObject {
  return OBJECTS[step.type];
}

/** Key of the object that a step changes, which identifies repeated attempts. Routes: {@link routeKey}. */
export function stepKey(step: NodeStep): string {
  switch (step.type) {
    case 'device-add':
      return `device ${step.tunnel.name}`;
    case 'device-set':
    case 'device-delete':
      return `device ${step.name}`;
    case 'address-add':
    case 'address-delete':
      return `address ${step.address} dev ${step.device}`;
    case 'neighbour-set':
    case 'neighbour-delete':
      return `neighbour ${step.address} dev ${step.device}`;
    case 'forwarding-set':
    case 'forwarding-delete':
      return `forwarding ${step.mac} dev ${step.device}`;
    case 'route-add':
    case 'route-replace':
    case 'route-delete':
      return routeKey(step.route.destination);
    case 'sysctl-write':
      return `sysctl ${step.key.join('/')}`;
  }
}

const ROUTE_KEY_PREFIX = 'route ';

function routeKey(destination: string): string {
  return ROUTE_KEY_PREFIX + destination;
}

/** @returns undefined when the key is not a route's */
export function destinationOfKey(key: string): string | undefined {
  return key.startsWith(ROUTE_KEY_PREFIX) ? key.slice(ROUTE_KEY_PREFIX.length) : undefined;
}

/** Whether the kernel changes more than the step describes, so that it must be read again. */
export function hasSideEffects({ type }: NodeStep): boolean {
  return type === 'device-add' || type === 'device-set' || type === 'device-delete' || type === 'address-delete';
}

/** The equivalent command of `ip`, `bridge` or `sysctl`. */
export function formatNodeStep(step: NodeStep): string {
  switch (step.type) {
    case 'device-add':
      return `ip link add ${formatTunnel(step.tunnel)}`;
    case 'device-set':
      return `ip link set ${step.name}${formatDeviceChange(step.changeSteps)}`;
    case 'device-delete':
      return `ip link delete ${step.name}`;
    case 'address-add':
    case 'address-delete':
      return `ip address ${verb(step)} ${step.address} dev ${step.device}`;
    case 'neighbour-set':
      return `ip neighbour replace ${step.address} dev ${step.device} lladdr ${step.mac} nud permanent`;
    case 'neighbour-delete':
      return `ip neighbour delete ${step.address} dev ${step.device}`;
    case 'forwarding-set':
      return `bridge fdb replace ${step.mac} dev ${step.device} dst ${step.nodeAddress} self permanent`;
    case 'forwarding-delete':
      return `bridge fdb delete ${step.mac} dev ${step.device} dst ${step.nodeAddress} self`;
    case 'route-add':
    case 'route-replace':
    case 'route-delete':
      return `ip route ${verb(step)} ${formatNodeRoute(step.route)}`;
    case 'sysctl-write':
      return `sysctl -w ${step.key.map((part) => part.replaceAll('.', '/')).join('.')}=${step.value}`;
  }
}

/** `10.65.1.0/26 via 10.0.0.2 dev eth0 proto 87 onlink src 10.65.0.1`, as `ip route` prints it. */
export function formatNodeRoute(route: ObservedRoute): string {
  const { destination, type, gateway, device, onlink, source } = route;
  return [
    type === 'unicast' ? '' : `${type} `,
    destination,
    gateway === undefined ? '' : ` via ${gateway}`,
    device === undefined ? '' : ` dev ${device}`,
    ` proto ${NODE_ROUTE_PROTOCOL}`,
    onlink ? ' onlink' : '',
    source === undefined ? '' : ` src ${source}`,
  ].join('');
}

function formatTunnel(tunnel: WantedTunnel): string {
  const head = `${tunnel.name} mtu ${tunnel.mtuBytes}`;
  if (tunnel.kind === 'ipip') return `${head} type ipip local ${tunnel.local}`;
  const parent = tunnel.parent === undefined ? '' : ` dev ${tunnel.parent}`;
  return (
    `${head} address ${tunnel.mac} type vxlan id ${tunnel.vni} dstport ${tunnel.port} local ${tunnel.local}${parent} ` +
    'nolearning'
  );
}

function formatDeviceChange({ up, mac, mtuBytes }: DeviceChange): string {
  return [
    mac === undefined ? '' : ` address ${mac}`,
    mtuBytes === undefined ? '' : ` mtu ${mtuBytes}`,
    up === undefined ? '' : up ? ' up' : ' down',
  ].join('');
}

function verb({ type }: NodeStep): string {
  return type.slice(type.indexOf('-') + 1);
}
