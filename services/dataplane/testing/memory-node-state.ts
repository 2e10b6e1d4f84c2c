import { parseAddress } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains, prefixOf, splitCidr } from '@podwire/shared/net/prefix';

import { forwardingKey, neighbourKey } from '../routes/node-state-cache.js';
import {
  equalRoutes,
  type DeviceAddress,
  type NodeChange,
  type ObservedDevice,
  type PeerForwarding,
  type PeerNeighbour,
  type KernelRoute,
} from '../routes/observed.js';
import { formatNodeRoute, formatNodeStep, type DeviceChange } from '../routes/step.js';
import type { WantedTunnel } from '../routes/wanted.js';
import { Errno } from './memory-namespace.js';

/** Size of a tunnel's outer headers in bytes, which the kernel subtracts from the interface's MTU. */
const VXLAN_OVERHEAD_BYTES = { 4: 50, 6: 70 } as const;

interface MemoryDevice {
  readonly name: string;
  readonly kind: string | null;
  mac: string;
  mtuBytes: number;
  up: boolean;
  alias: string | null;
  readonly tunnel: ObservedDevice['tunnel'];
}

/**
 * The network namespace of a fake node: devices, addresses, routes, neighbours and forwarding entries with the real kernel's
 * rules that steps and tests need, and the notifications that the real kernel sends.
 */
export class MemoryNode {
  readonly devices: MemoryDevice[] = [];
  readonly addresses: DeviceAddress[] = [];
  readonly routes: KernelRoute[] = [];
  readonly neighbours: PeerNeighbour[] = [];
  readonly forwarding: PeerForwarding[] = [];
  readonly sysctls = new Map<string, string>([
    ['net/ipv4/ip_forward', '0'],
    ['net/ipv6/conf/all/forwarding', '0'],
  ]);
  /** Called for every change that the kernel notifies of. */
  announce: (change: NodeChange) => void = () => undefined;

  find(name: string): MemoryDevice {
    const device = this.devices.find((candidate) => candidate.name === name);
    if (!device) throw new Errno('ENODEV', `no link ${name}`);
    return device;
  }

  /** Adds a device of any kind, as another program does. */
  addDevice(device: MemoryDevice): void {
    if (this.devices.some(({ name }) => name === device.name)) throw new Errno('EEXIST', `link ${device.name} exists`);
    this.devices.push(device);
    this.#announceDevice(device);
  }

  addTunnel(tunnel: WantedTunnel): void {
    if (tunnel.kind === 'ipip') {
      const { kind, local } = tunnel;
      this.addDevice(createDevice(tunnel, { mac: '', tunnel: { kind, local, remote: undefined } }));
      return;
    }
    const { kind, vni, port, local, parent, mac } = tunnel;
    const family = local.includes(':') ? 6 : 4;
    const room = parent === undefined ? Infinity : this.find(parent).mtuBytes - VXLAN_OVERHEAD_BYTES[family];
    const isTaken = this.devices.some(
      ({ tunnel: other }) =>
        other?.kind === 'vxlan' &&
        other.vni === vni &&
        other.port === port &&
        (other.local?.includes(':') ?? false) === (family === 6),
    );
    if (isTaken) throw new Errno('EEXIST', 'A VXLAN device with the specified VNI already exists');
    const observed = {
      kind,
      vni,
      port,
      local,
      parent,
      remote: undefined,
      isLearning: false,
      isExternal: false,
    } as const;
    const device = createDevice(tunnel, { mac, tunnel: observed });
    // The kernel reduces a larger MTU to fit at creation (vxlan_config_apply, drivers/net/vxlan/vxlan_core.c).
    device.mtuBytes = Math.min(device.mtuBytes, room);
    this.addDevice(device);
  }

  setDevice(name: string, { up, mac, mtuBytes }: DeviceChange): void {
    const device = this.find(name);
    if (mtuBytes !== undefined) {
      const parent = device.tunnel?.kind === 'vxlan' ? device.tunnel.parent : undefined;
      const overhead = VXLAN_OVERHEAD_BYTES[device.tunnel?.local?.includes(':') === true ? 6 : 4];
      if (parent !== undefined && mtuBytes > this.find(parent).mtuBytes - overhead) throw new Errno('EINVAL', 'mtu');
      device.mtuBytes = mtuBytes;
    }
    if (mac !== undefined && mac !== device.mac) {
      device.mac = mac;
      this.#dropNeighbours(name);
    }
    if (up === false && device.up) this.#removeObjectsOn(device, { isDeleted: false });
    if (up !== undefined) device.up = up;
    this.#announceDevice(device);
  }

  /** Deletes a device with all objects on it, and the VXLAN devices that use it. */
  deleteDevice(name: string): void {
    const device = this.find(name);
    for (const { name: upper, tunnel } of [...this.devices]) {
      if (tunnel?.kind === 'vxlan' && tunnel.parent === name) this.deleteDevice(upper);
    }
    this.#removeObjectsOn(device, { isDeleted: true });
    removeWhere(this.devices, (candidate) => candidate === device);
    for (const entry of removeWhere(this.forwarding, (candidate) => candidate.device === name)) {
      this.announce({ object: 'forwarding', deleted: true, ...entry });
    }
    this.announce({ object: 'device', deleted: true, device: observed({ ...device, up: false }) });
  }

  addAddress({ device, address }: DeviceAddress): void {
    this.find(device);
    if (this.#hasAddress({ device, address })) throw new Errno('EEXIST');
    this.addresses.push({ device, address });
    this.announce({ object: 'address', deleted: false, device, address });
  }

  deleteAddress({ device, address }: DeviceAddress): void {
    this.find(device);
    if (!this.#hasAddress({ device, address })) throw new Errno('EADDRNOTAVAIL');
    this.#dropAddress({ device, address });
  }

  addRoute(route: KernelRoute): void {
    this.#checkRoute(route);
    if (this.routes.some((other) => isSamePlace(other, route))) throw new Errno('EEXIST');
    this.routes.push(route);
    this.announce({ object: 'route', deleted: false, route });
  }

  /** Adds a route beside routes to the same destination, as `ip route append` for IPv4. */
  appendRoute(route: KernelRoute): void {
    this.#checkRoute(route);
    if (this.routes.some((other) => isSamePlace(other, route) && equalRoutes(other, route))) throw new Errno('EEXIST');
    this.routes.push(route);
    this.announce({ object: 'route', deleted: false, route });
  }

  /** Replaces the first route to the destination, of any program. The notification does not show the replacement. */
  replaceRoute(route: KernelRoute): void {
    this.#checkRoute(route);
    const place = this.routes.findIndex((other) => isSamePlace(other, route));
    const isSecond = this.routes.some(
      (other, position) => position > place && isSamePlace(other, route) && isSameRoute(other, route),
    );
    if (isSecond) throw new Errno('EEXIST');
    if (place < 0) this.routes.push(route);
    else this.routes[place] = route;
    this.announce({ object: 'route', deleted: false, route });
  }

  deleteRoute(route: KernelRoute): void {
    if (route.device !== undefined) this.find(route.device);
    const place = this.routes.findIndex((other) => isSamePlace(other, route) && isSameRoute(other, route));
    const [removed] = place < 0 ? [] : this.routes.splice(place, 1);
    if (!removed) throw new Errno('ESRCH');
    this.announce({ object: 'route', deleted: true, route: removed });
  }

  setNeighbour(entry: PeerNeighbour): void {
    if (!this.find(entry.device).up) throw new Errno('ENETDOWN', 'device is down');
    removeWhere(this.neighbours, (other) => neighbourKey(other) === neighbourKey(entry));
    this.neighbours.push(entry);
    this.announce({ object: 'neighbour', deleted: false, ...entry });
  }

  deleteNeighbour({ device, address }: Omit<PeerNeighbour, 'mac'>): void {
    this.find(device);
    const removed = removeWhere(this.neighbours, (other) => neighbourKey(other) === neighbourKey({ device, address }));
    if (removed.length === 0) throw new Errno('ENOENT');
    for (const entry of removed) this.announce({ object: 'neighbour', deleted: true, ...entry });
  }

  setForwarding(entry: PeerForwarding): void {
    this.find(entry.device);
    removeWhere(this.forwarding, (other) => forwardingKey(other) === forwardingKey(entry));
    this.appendForwarding(entry);
  }

  /** Same as `bridge fdb append`: the kernel ignores it for a MAC address that has an entry, except zero. */
  appendForwarding(entry: PeerForwarding): void {
    this.find(entry.device);
    const isTaken = this.forwarding.some((other) => forwardingKey(other) === forwardingKey(entry));
    if (isTaken && entry.mac !== '00:00:00:00:00:00') return;
    this.forwarding.push(entry);
    this.announce({ object: 'forwarding', deleted: false, ...entry });
  }

  deleteForwarding(entry: PeerForwarding): void {
    this.find(entry.device);
    const isEntry = (other: PeerForwarding) =>
      forwardingKey(other) === forwardingKey(entry) && other.nodeAddress === entry.nodeAddress;
    if (removeWhere(this.forwarding, isEntry).length === 0) throw new Errno('ENOENT');
    this.announce({ object: 'forwarding', deleted: true, ...entry });
  }

  writeSysctl(key: string, value: string): void {
    if (!this.sysctls.has(key)) throw new Errno('ENOENT');
    this.sysctls.set(key, value);
  }

  /** The whole state, as `ip`, `bridge` and `sysctl` print it. */
  print(): string[] {
    return [
      ...this.devices.map(({ name, kind, mac, mtuBytes, up }) =>
        ['link', name, kind ?? 'device', mac, 'mtu', mtuBytes, up ? 'up' : 'down'].join(' '),
      ),
      ...this.addresses.map(({ address, device }) => `address ${address} dev ${device}`).sort(),
      ...this.routes.map((route) => `route ${formatSeen(route)}`).sort(),
      ...this.neighbours.map((entry) => formatNodeStep({ type: 'neighbour-set', ...entry })).sort(),
      ...this.forwarding.map((entry) => formatNodeStep({ type: 'forwarding-set', ...entry })).sort(),
      ...[...this.sysctls].map(([key, value]) => `sysctl ${key}=${value}`).sort(),
    ];
  }

  #hasAddress({ device, address }: DeviceAddress): boolean {
    return this.addresses.some((entry) => entry.device === device && entry.address === address);
  }

  #announceDevice(device: MemoryDevice): void {
    this.announce({ object: 'device', deleted: false, device: observed(device) });
  }

  #checkRoute({ destination, type, device, gateway, onlink, source }: KernelRoute): void {
    const bare = source?.concat('/');
    if (bare !== undefined && !this.addresses.some(({ address }) => address.startsWith(bare))) {
      throw new Errno('EINVAL', 'Invalid prefsrc address');
    }
    if (type !== 'unicast' || device === undefined) return;
    if (!this.find(device).up) throw new Errno('ENETDOWN', 'Device for nexthop is not up');
    if (gateway !== undefined && onlink) this.#checkOnlink(device, gateway);
    if (gateway === undefined || onlink) return;
    if (!this.#isOnLink(device, gateway)) {
      throw new Errno(destination.includes(':') ? 'EHOSTUNREACH' : 'ENETUNREACH', 'Nexthop has invalid gateway');
    }
  }

  /** IPv6: no route, but the default one, may lead to the gateway by another device (ip6_route_check_nh_onlink). */
  #checkOnlink(device: string, gateway: string): void {
    const target = parseAddress(gateway);
    if (target?.family !== 6) return;
    const covering = this.routes.flatMap((route) => {
      const parsed = parsePrefix(route.destination);
      return parsed.ok && prefixContains(parsed.prefix, target) ? [{ route, length: parsed.prefix.length }] : [];
    });
    const [best] = covering.sort((a, b) => b.length - a.length);
    if (best && best.length > 0 && best.route.type === 'unicast' && best.route.device !== device) {
      throw new Errno('EINVAL', 'Nexthop has invalid gateway or device mismatch');
    }
  }

  #isOnLink(device: string, gateway: string): boolean {
    const target = parseAddress(gateway);
    return this.addresses.some((entry) => {
      const cidr = splitCidr(entry.address);
      return entry.device === device && target && cidr && prefixContains(prefixOf(cidr.address, cidr.length), target);
    });
  }

  /** A device that is deleted or goes down loses routes and neighbours, and all or only its IPv6 addresses. */
  #removeObjectsOn(device: MemoryDevice, { isDeleted }: { readonly isDeleted: boolean }): void {
    device.up = false;
    const lost = removeWhere(this.routes, (route) => route.device === device.name);
    for (const route of lost) {
      // IPv4 routes vanish without a notification (fib_table_flush, net/ipv4/fib_trie.c).
      if (route.destination.includes(':')) this.announce({ object: 'route', deleted: true, route });
    }
    this.#dropNeighbours(device.name);
    const addresses = this.addresses.filter((entry) => entry.device === device.name);
    for (const entry of addresses) if (isDeleted || entry.address.includes(':')) this.#dropAddress(entry);
  }

  #dropNeighbours(name: string): void {
    for (const entry of removeWhere(this.neighbours, ({ device }) => device === name)) {
      this.announce({ object: 'neighbour', deleted: true, ...entry });
    }
  }

  #dropAddress({ device, address }: DeviceAddress): void {
    const [bare = ''] = address.split('/');
    const isIpv6 = address.includes(':');
    removeWhere(this.addresses, (entry) => entry.device === device && entry.address === address);
    const isLast = !this.addresses.some((entry) => entry.device === device && !entry.address.includes(':'));
    // The last IPv4 address of a device takes its IPv4 routes along, without a notification (fib_inetaddr_event, net/ipv4/fib_frontend.c).
    if (!isIpv6 && isLast)
      removeWhere(this.routes, (route) => route.device === device && !route.destination.includes(':'));
    for (const route of this.routes.filter((candidate) => candidate.source === bare)) {
      if (isIpv6) this.routes[this.routes.indexOf(route)] = { ...route, source: undefined };
      else removeWhere(this.routes, (candidate) => candidate === route);
    }
    this.announce({ object: 'address', deleted: true, device, address });
  }
}

/** A device as the kernel lists it. */
export function observed({ name, kind, up, mac, mtuBytes, tunnel }: MemoryDevice): ObservedDevice {
  return { name, kind, up, mac: mac === '' ? null : mac, mtuBytes, tunnel };
}

function createDevice(
  { name, kind, mtuBytes }: WantedTunnel,
  { mac, tunnel }: Pick<MemoryDevice, 'mac' | 'tunnel'>,
): MemoryDevice {
  return { name, kind, mac, mtuBytes, up: false, alias: null, tunnel };
}

function formatSeen(route: KernelRoute): string {
  return formatNodeRoute(route).replace(/ proto \d+/, ` proto ${route.protocol} metric ${route.metric}`);
}

function isSamePlace(a: KernelRoute, b: KernelRoute): boolean {
  return a.destination === b.destination && a.metric === b.metric;
}

/** Whether two routes are equal in the attributes that the kernel compares for a deletion. */
function isSameRoute(a: KernelRoute, b: KernelRoute): boolean {
  return a.protocol === b.protocol && a.type === b.type && a.device === b.device && a.gateway === b.gateway;
}

/** @returns the removed items */
function removeWhere<Item>(items: Item[], matches: (item: Item) => boolean): Item[] {
  const removed: Item[] = [];
  const kept: Item[] = [];
  for (const item of items) (matches(item) ? removed : kept).push(item);
  if (removed.length > 0) items.splice(0, items.length, ...kept);
  return removed;
}
