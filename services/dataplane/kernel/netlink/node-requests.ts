import type { IpipAdd, Request, RouteRequest, VxlanAdd } from '@podwire/netlink';

import { NODE_ROUTE_PROTOCOL } from '../../routes/observed.js';
import type { NodeStep } from '../../routes/step.js';
import type { WantedTunnel } from '../../routes/wanted.js';
import type { NodeLinks } from './node-links.js';

/** Steps that make, change or delete a device: others depend on what comes of them. */
export type DeviceStep = Extract<NodeStep, { type: 'device-add' | 'device-set' | 'device-delete' }>;
export type SysctlStep = Extract<NodeStep, { type: 'sysctl-write' }>;
/** The others, which depend on nothing of the same plan. */
export type PlainStep = Exclude<NodeStep, DeviceStep | SysctlStep>;

/** What the addon is asked for to make a tunnel device. */
export function toTunnelAdd(tunnel: WantedTunnel): VxlanAdd | IpipAdd {
  const { name, mtuBytes, local } = tunnel;
  if (tunnel.kind === 'ipip') return { type: 'link.add', kind: 'ipip', name, mtuBytes, local };
  const { vni, port, mac, parent } = tunnel;
  return {
    type: 'link.add',
    kind: 'vxlan',
    name,
    mtuBytes,
    local,
    vni,
    port,
    mac,
    learning: false,
    ...(parent === undefined ? {} : { parent: { name: parent } }),
  };
}

export function toDeviceRequest(step: Exclude<DeviceStep, { type: 'device-delete' }>): Request {
  if (step.type === 'device-add') return toTunnelAdd(step.tunnel);
  return { type: 'link.set', link: { name: step.name }, ...step.change };
}

export function toPlainRequest(step: PlainStep, links: NodeLinks): Request {
  switch (step.type) {
    case 'address-add':
      return { type: 'address.add', link: links.select(step.device), address: step.address, noDad: true };
    case 'address-delete':
      return { type: 'address.delete', link: links.select(step.device), address: step.address };
    case 'neighbour-set':
      return { type: 'neighbour.replace', link: links.select(step.device), address: step.address, mac: step.mac };
    case 'neighbour-delete':
      return { type: 'neighbour.delete', link: links.select(step.device), address: step.address };
    case 'forwarding-set':
      return {
        type: 'fdb.replace',
        link: links.select(step.device),
        mac: step.mac,
        destination: step.nodeAddress,
      };
    case 'forwarding-delete':
      return {
        type: 'fdb.delete',
        link: links.select(step.device),
        mac: step.mac,
        destination: step.nodeAddress,
      };
    case 'route-add':
      return toRoute('route.add', step, links);
    case 'route-replace':
      return toRoute('route.replace', step, links);
    case 'route-delete':
      return toRoute('route.delete', step, links);
  }
}

type RouteStep = Extract<NodeStep, { type: 'route-add' | 'route-replace' | 'route-delete' }>;

function toRoute(type: RouteRequest['type'], step: RouteStep, links: NodeLinks): RouteRequest {
  const { destination, device, gateway, source, onlink, type: routeType } = step.route;
  return {
    type,
    destination,
    protocol: NODE_ROUTE_PROTOCOL,
    onlink,
    ...(routeType === 'other' ? {} : { routeType }),
    ...(device === undefined ? {} : { output: links.select(device) }),
    ...(gateway === undefined ? {} : { gateway }),
    ...(source === undefined ? {} : { source }),
    ...(step.type === 'route-delete' ? { metric: step.route.metric } : {}),
  };
}

/** The device that a step needs to be there. */
export function deviceOf(step: PlainStep): string | undefined {
  return 'route' in step ? step.route.device : step.device;
}
