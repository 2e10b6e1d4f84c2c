import { forwardingKey, neighbourKey, type NodeStateCache } from './node-state-cache.js';
import {
  equalRoutes,
  isDefaultMetric,
  isRouted,
  ownerOf,
  TUNNEL_DEVICES,
  type NodeChange,
  type ObservedDevice,
  type KernelRoute,
} from './observed.js';
import type { WantedNode } from './wanted.js';

/** Effects of the kernel's notifications on the known state. */
export interface EventEffects {
  /** Destinations whose known route changed. */
  readonly routes: Set<string>;
  /** Deleted destinations whose route was as wanted before: another program changed it. */
  readonly drifted: Set<string>;
  /** Whether an object on the tunnel devices changed. */
  hasDeviceObjects: boolean;
  /** Whether the kernel must be read in full, as it may have changed without a notification. */
  needsCheck: boolean;
}

interface EventApplierOptions {
  readonly known: NodeStateCache;
  readonly wanted: Pick<WantedNode, 'routes'>;
  /** Whether the node's routes or tunnels depend on a foreign interface. */
  readonly isParent: (device: string) => boolean;
}

/**
 * Applies the kernel's notifications to the known state. A notification of Podwire's own change has no effect: the known state
 * matches already.
 */
export class EventApplier {
  readonly effects: EventEffects = {
    routes: new Set(),
    drifted: new Set(),
    hasDeviceObjects: false,
    needsCheck: false,
  };
  readonly #known: NodeStateCache;
  readonly #wanted: EventApplierOptions['wanted'];
  readonly #isParent: EventApplierOptions['isParent'];

  constructor({ known, wanted, isParent }: EventApplierOptions) {
    this.#known = known;
    this.#wanted = wanted;
    this.#isParent = isParent;
  }

  apply(change: NodeChange): void {
    switch (change.object) {
      case 'route': {
        this.#route(change.route, change);
        return;
      }
      case 'device': {
        this.#device(change.device, change);
        return;
      }
      case 'address': {
        this.#address(change);
        return;
      }
      case 'neighbour': {
        this.#neighbour(change);
        return;
      }
      case 'forwarding': {
        this.#forwarding(change);
        return;
      }
      case 'pod-interface':
        return;
      case 'overrun':
        this.effects.needsCheck = true;
    }
  }

  #route(route: KernelRoute, { deleted }: { readonly deleted: boolean }): void {
    const owner = ownerOf(route);
    if (owner === 'node') {
      this.#ownRoute(route, { deleted });
      return;
    }
    if (isRouted(route)) this.#routedDestination(route.destination, { deleted });
    const { destination } = route;
    if (!isDefaultMetric(route) || !this.#wanted.routes.has(destination)) return;
    if (deleted) {
      this.#known.conflictingRoutes.delete(destination);
      this.effects.routes.add(destination);
      return;
    }
    // It may exist beside the node's own route, or have replaced it: the notifications are identical.
    if (this.#known.routes.has(destination)) this.effects.needsCheck = true;
    this.#known.conflictingRoutes.set(destination, route);
  }

  #ownRoute(route: KernelRoute, { deleted }: { readonly deleted: boolean }): void {
    const { destination } = route;
    const found = this.#known.routes.get(destination);
    if (!isDefaultMetric(route)) {
      this.effects.needsCheck ||= !deleted;
      return;
    }
    // The deletion is already known, or concerns an earlier route of this destination.
    if (deleted !== equalRoutes(found, route)) return;
    const wanted = this.#wanted.routes.get(destination);
    const wasAsWanted = equalRoutes(found, wanted);
    if (wasAsWanted) this.effects.drifted.add(destination);
    this.effects.routes.add(destination);
    if (deleted) this.#known.routes.delete(destination);
    else this.#known.routes.set(destination, route);
    // Both routes may exist.
    if (!deleted && found) this.effects.needsCheck = true;
  }

  #routedDestination(destination: string, { deleted }: { readonly deleted: boolean }): void {
    if (!deleted) this.#known.addRouted(destination);
    // Another route to the same destination may exist, with another metric.
    else if (this.#known.removeRouted(destination)) this.effects.needsCheck = true;
  }

  #device(device: ObservedDevice, { deleted }: { readonly deleted: boolean }): void {
    const { devices, addresses } = this.#known;
    const { name } = device;
    const found = devices.get(name);
    if (deleted ? !found : found && equalDevices(found, device)) return;
    if (deleted) devices.delete(name);
    else devices.set(name, device);
    const hasAddresses = (addresses.get(name)?.size ?? 0) > 0;
    // The interface's addresses and routes may have vanished, some without a notification.
    if (TUNNEL_DEVICES.includes(name) || this.#isParent(name) || hasAddresses) this.effects.needsCheck = true;
    if (deleted) addresses.delete(name);
  }

  #address({ device, address, deleted }: Extract<NodeChange, { object: 'address' }>): void {
    if (this.#known.hasAddress(device, address) !== deleted) return;
    this.#known.setAddress({ device, address }, { isPresent: !deleted });
    if (TUNNEL_DEVICES.includes(device) || this.#isParent(device)) this.effects.needsCheck = true;
  }

  #neighbour({ deleted, device, address, mac }: Extract<NodeChange, { object: 'neighbour' }>): void {
    const { neighbours } = this.#known;
    const key = neighbourKey({ device, address });
    const found = neighbours.get(key);
    if (deleted ? !found : found?.mac === mac) return;
    if (deleted) neighbours.delete(key);
    else neighbours.set(key, { device, address, mac });
    this.effects.hasDeviceObjects = true;
  }

  #forwarding({ deleted, device, mac, nodeAddress }: Extract<NodeChange, { object: 'forwarding' }>): void {
    const entry = { device, mac, nodeAddress };
    const entries = this.#known.forwarding.get(forwardingKey(entry)) ?? [];
    const isKnown = entries.some((known) => known.nodeAddress === nodeAddress);
    if (isKnown !== deleted) return;
    if (deleted) this.#known.removeForwarding(entry);
    else this.#known.addForwarding(entry);
    this.effects.hasDeviceObjects = true;
    // The notification of a replacement looks like an addition.
    if (!deleted && entries.length > 0) this.effects.needsCheck = true;
  }
}

/**
 * Pods' host interfaces by name that changed, or whose routes did.
 * @returns for each whether the change cannot come from a wiring
 */
export function podInterfacesOf(changes: readonly NodeChange[]): ReadonlyMap<string, boolean> {
  const found = new Map<string, boolean>();
  const record = (name: string, isInterference: boolean) => found.set(name, isInterference || found.get(name) === true);
  for (const change of changes) {
    if (change.object === 'pod-interface') record(change.name, change.isInterference);
    if (change.object !== 'route' || ownerOf(change.route) !== 'pod' || change.route.device === undefined) continue;
    record(change.route.device, change.deleted);
  }
  return found;
}

function equalDevices(a: ObservedDevice, b: ObservedDevice): boolean {
  return (
    a.name === b.name &&
    a.kind === b.kind &&
    a.up === b.up &&
    a.mac === b.mac &&
    a.mtuBytes === b.mtuBytes &&
    JSON.stringify(a.tunnel) === JSON.stringify(b.tunnel)
  );
}
