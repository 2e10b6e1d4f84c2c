import type { Address } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, parsePrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import {
  equalRoutes,
  isDefaultMetric,
  ownerOf,
  type DeviceAddress,
  type NodeChange,
  type ObservedDevice,
  type ObservedNode,
  type ObservedRoute,
  type PeerForwarding,
  type PeerNeighbour,
  type KernelRoute,
} from './observed.js';
import type { NodeStep } from './step.js';
import type { NodeRoute } from './wanted.js';

/**
 * The known state of the node's kernel: read in full, then updated by Podwire's changes and the kernel's notifications. So a
 * change of one block needs no reading.
 *
 * Some changes cause no notification: when an interface goes down, its IPv4 routes vanish. The caller must then read the kernel
 * in full.
 */
export class NodeStateCache {
  readonly devices: Map<string, ObservedDevice>;
  /** Addresses by device. */
  readonly addresses = new Map<string, Set<string>>();
  /** Podwire's, by destination; each of the default metric. */
  readonly routes = new Map<string, ObservedRoute>();
  /** Podwire's routes to be deleted: routes of another metric, and duplicates of a destination. */
  readonly orphanRoutes: KernelRoute[] = [];
  /** Foreign routes in the place of a wanted one, by destination. */
  readonly conflictingRoutes = new Map<string, KernelRoute>();
  /** Destinations that foreign routes send to a router. */
  readonly #routed: Set<string>;
  #outermostRouted: readonly Prefix[] | undefined;
  /** Neighbours by {@link neighbourKey}. */
  readonly neighbours = new Map<string, PeerNeighbour>();
  /** Entries by {@link forwardingKey}; several when another program added entries. */
  readonly forwarding = new Map<string, readonly PeerForwarding[]>();
  readonly sysctls: Map<string, string | null>;

  constructor(observed: ObservedNode, wanted: ReadonlyMap<string, NodeRoute>) {
    this.devices = new Map(observed.devices);
    this.sysctls = new Map(observed.sysctls);
    this.#routed = new Set(observed.routed);
    for (const { device, address } of observed.addresses) this.#addressesOf(device).add(address);
    for (const neighbour of observed.neighbours) this.neighbours.set(neighbourKey(neighbour), neighbour);
    for (const entry of observed.forwarding) this.#addForwarding(entry);
    for (const route of observed.routes) {
      const orphan = this.#addRoute(route, wanted);
      if (orphan) this.orphanRoutes.push(orphan);
    }
  }

  hasAddress(device: string, address: string): boolean {
    return this.addresses.get(device)?.has(address) ?? false;
  }

  /** Whether a device can have routes and neighbours. */
  isUp(device: string): boolean {
    return this.devices.get(device)?.up ?? false;
  }

  /** Destinations that foreign routes send to a router, without those inside another one. Sorted. */
  get routed(): readonly Prefix[] {
    this.#outermostRouted ??= outermost(this.#routed);
    return this.#outermostRouted;
  }

  /** CIDR of the narrowest foreign route, except the default, that reaches an address through a router. */
  routedBy(address: Address): string | undefined {
    return [...this.#routed]
      .flatMap((destination) => {
        const found = parsePrefix(destination);
        return found.ok && found.prefix.length > 0 && prefixContains(found.prefix, address) ? [found.prefix] : [];
      })
      .toSorted((a, b) => b.length - a.length)
      .map(formatPrefix)[0];
  }

  addRouted(destination: string): void {
    if (!this.#routed.has(destination)) this.#outermostRouted = undefined;
    this.#routed.add(destination);
  }

  /** @returns whether the set of routed destinations may change: no wider one contains it */
  removeRouted(destination: string): boolean {
    const found = parsePrefix(destination);
    if (!this.#routed.has(destination) || !found.ok) return false;
    const isCovered = this.routed.some(
      (outer) => outer.length < found.prefix.length && prefixContains(outer, found.prefix),
    );
    this.#routed.delete(destination);
    if (!isCovered) this.#outermostRouted = undefined;
    return !isCovered;
  }

  /** Applies the change of a completed step, without its side effects. */
  advance(step: NodeStep): void {
    switch (step.type) {
      case 'device-add':
      case 'device-set':
        return;
      case 'device-delete':
        this.devices.delete(step.name);
        return;
      case 'address-add':
      case 'address-delete':
        this.setAddress(step, { isPresent: step.type === 'address-add' });
        return;
      case 'neighbour-set': {
        // The step's type is left out: entries of the known state are spread into later steps.
        const { device, address, mac } = step;
        this.neighbours.set(neighbourKey(step), { device, address, mac });
        return;
      }
      case 'neighbour-delete':
        this.neighbours.delete(neighbourKey(step));
        return;
      case 'forwarding-set': {
        const { device, mac, nodeAddress } = step;
        this.forwarding.set(forwardingKey(step), [{ device, mac, nodeAddress }]);
        return;
      }
      case 'forwarding-delete':
        this.removeForwarding(step);
        return;
      case 'route-add':
      case 'route-replace':
        this.routes.set(step.route.destination, step.route);
        return;
      case 'route-delete':
        this.#removeRoute(step.route);
        return;
      case 'sysctl-write':
        this.sysctls.set(step.key.join('/'), step.value);
    }
  }

  setAddress({ device, address }: DeviceAddress, { isPresent }: { readonly isPresent: boolean }): void {
    if (isPresent) this.#addressesOf(device).add(address);
    else this.#addressesOf(device).delete(address);
  }

  addForwarding(entry: PeerForwarding): void {
    this.removeForwarding(entry);
    this.#addForwarding(entry);
  }

  removeForwarding(entry: PeerForwarding): void {
    const key = forwardingKey(entry);
    const rest = (this.forwarding.get(key) ?? []).filter(({ nodeAddress }) => nodeAddress !== entry.nodeAddress);
    if (rest.length === 0) this.forwarding.delete(key);
    else this.forwarding.set(key, rest);
  }

  #removeRoute(route: ObservedRoute & Pick<KernelRoute, 'metric'>): void {
    const index = this.orphanRoutes.findIndex((orphan) => orphan.metric === route.metric && equalRoutes(orphan, route));
    if (index >= 0) {
      this.orphanRoutes.splice(index, 1);
      return;
    }
    const known = this.routes.get(route.destination);
    if (known && equalRoutes(known, route)) this.routes.delete(route.destination);
  }

  #addForwarding(entry: PeerForwarding): void {
    const key = forwardingKey(entry);
    this.forwarding.set(key, [...(this.forwarding.get(key) ?? []), entry]);
  }

  #addressesOf(device: string): Set<string> {
    const addresses = this.addresses.get(device) ?? new Set<string>();
    this.addresses.set(device, addresses);
    return addresses;
  }

  /** @returns the surplus route, when its destination already has another one */
  #addRoute(route: KernelRoute, wanted: ReadonlyMap<string, NodeRoute>): KernelRoute | undefined {
    const { destination } = route;
    const isOwn = ownerOf(route) === 'node';
    if (!isDefaultMetric(route)) return isOwn ? route : undefined;
    if (!isOwn) {
      this.conflictingRoutes.set(destination, route);
      return undefined;
    }
    const earlier = this.routes.get(destination);
    const wantedRoute = wanted.get(destination);
    if (earlier && wantedRoute && !equalRoutes(earlier, wantedRoute) && equalRoutes(route, wantedRoute)) {
      this.routes.set(destination, route);
      return { ...earlier, metric: route.metric, protocol: route.protocol };
    }
    if (earlier) return route;
    this.routes.set(destination, route);
    return undefined;
  }
}

function outermost(destinations: Iterable<string>): readonly Prefix[] {
  const prefixes = [...destinations].flatMap((text) => {
    const parsed = parsePrefix(text);
    return parsed.ok ? [parsed.prefix] : [];
  });
  const kept: Prefix[] = [];
  // A prefix directly follows its containing prefixes.
  for (const prefix of prefixes.sort(comparePrefixes)) {
    const last = kept.at(-1);
    if (!last || !prefixContains(last, prefix)) kept.push(prefix);
  }
  return kept;
}

export function neighbourKey({ device, address }: Pick<PeerNeighbour, 'device' | 'address'>): string {
  return `${device} ${address}`;
}

export function forwardingKey({ device, mac }: Pick<PeerForwarding, 'device' | 'mac'>): string {
  return `${device} ${mac}`;
}

/** Notifications since the last call. */
export interface BufferedEvents {
  readonly changes: readonly NodeChange[];
  /** Whether some were lost. */
  readonly hasOverrun: boolean;
}

/** Above this limit the kernel is read in full instead, so that a storm cannot exhaust memory. */
const CHANGES_MAX = 20_000;

/**
 * Buffers notifications, only the last of each object: intermediate states do not matter. The notifications of a route that
 * Podwire set, deleted and set again within milliseconds cancel out.
 */
export class EventBuffer {
  readonly #changes = new Map<string, NodeChange>();
  #hasOverrun = false;

  put(change: NodeChange): void {
    if (change.object === 'overrun' || this.#changes.size >= CHANGES_MAX) {
      this.#hasOverrun = true;
      return;
    }
    const key = changeKey(change);
    const before = this.#changes.get(key);
    // The entry moves to the end: the order follows the last changes.
    this.#changes.delete(key);
    this.#changes.set(key, before ? mergeChanges(before, change) : change);
  }

  /** Returns and removes the buffered notifications. */
  take(): BufferedEvents {
    const events = { changes: [...this.#changes.values()], hasOverrun: this.#hasOverrun };
    this.#changes.clear();
    this.#hasOverrun = false;
    return events;
  }
}

/** A later notification must not hide another program's change of a pod's interface. */
function mergeChanges(before: NodeChange, change: NodeChange): NodeChange {
  if (change.object !== 'pod-interface' || before.object !== 'pod-interface') return change;
  return { ...change, isInterference: change.isInterference || before.isInterference };
}

function changeKey(change: Exclude<NodeChange, { readonly object: 'overrun' }>): string {
  switch (change.object) {
    case 'route': {
      const { destination, metric } = change.route;
      return `route ${destination} ${metric} ${ownerOf(change.route)}`;
    }
    case 'device':
      return `device ${change.device.name}`;
    case 'address':
      return `address ${change.device} ${change.address}`;
    case 'neighbour':
      return `neighbour ${neighbourKey(change)}`;
    case 'forwarding':
      return `forwarding ${forwardingKey(change)} ${change.nodeAddress}`;
    case 'pod-interface':
      return `pod ${change.name}`;
  }
}
