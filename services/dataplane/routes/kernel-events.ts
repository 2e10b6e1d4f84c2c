import { forwardingKey, neighbourKey, type KnownNode } from './known-node.js';
import {
  equalRoutes,
  isDefaultMetric,
  isRouted,
  ownerOf,
  TUNNEL_DEVICES,
  type NodeChange,
  type ObservedDevice,
  type SeenRoute,
} from './observed.js';
import type { WantedNode } from './wanted.js';

/** Effect of the kernel's announcements on the known state. */
export interface Heard {
  /** Destinations whose known route changed. */
  readonly routes: Set<string>;
  /** Those among them whose route had matched: another program changed it. */
  readonly drifted: Set<string>;
  /** Whether an object on the tunnel devices changed. */
  rest: boolean;
  /** Whether unannounced changes are possible: the kernel must be read in full. */
  needsCheck: boolean;
}

interface HearingContext {
  readonly known: KnownNode;
  readonly wanted: Pick<WantedNode, 'routes'>;
  /** Whether the node's routes or tunnels depend on a foreign interface. */
  readonly isParent: (device: string) => boolean;
}

/**
 * Applies the kernel's announcements to the known state. The echo of Podwire's own change matches it already, and has no effect.
 */
export class Hearing {
  readonly heard: Heard = {
    routes: new Set(),
    drifted: new Set(),
    rest: false,
    needsCheck: false,
  };
  readonly #known: KnownNode;
  readonly #wanted: HearingContext['wanted'];
  readonly #isParent: HearingContext['isParent'];

  constructor({ known, wanted, isParent }: HearingContext) {
    this.#known = known;
    this.#wanted = wanted;
    this.#isParent = isParent;
  }

  hear(change: NodeChange): void {
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
        this.heard.needsCheck = true;
    }
  }

  #route(route: SeenRoute, { deleted }: { readonly deleted: boolean }): void {
    const owner = ownerOf(route);
    if (owner === 'node') {
      this.#ownRoute(route, { deleted });
      return;
    }
    if (isRouted(route)) this.#routedChange(route.destination, { deleted });
    const { destination } = route;
    if (!isDefaultMetric(route) || !this.#wanted.routes.has(destination)) return;
    if (deleted) {
      this.#known.takers.delete(destination);
      this.heard.routes.add(destination);
      return;
    }
    // It may be beside the node's own route, or have replaced it: the announcements are identical.
    if (this.#known.routes.has(destination)) this.heard.needsCheck = true;
    this.#known.takers.set(destination, route);
  }

  #ownRoute(route: SeenRoute, { deleted }: { readonly deleted: boolean }): void {
    const { destination } = route;
    const found = this.#known.routes.get(destination);
    if (!isDefaultMetric(route)) {
      this.heard.needsCheck ||= !deleted;
      return;
    }
    // The deletion is already known, or concerns an earlier route of this destination.
    if (deleted !== (found !== undefined && equalRoutes(found, route))) return;
    const wanted = this.#wanted.routes.get(destination);
    const wasAsWanted = found === undefined ? wanted === undefined : wanted !== undefined && equalRoutes(found, wanted);
    if (wasAsWanted) this.heard.drifted.add(destination);
    this.heard.routes.add(destination);
    if (deleted) this.#known.routes.delete(destination);
    else this.#known.routes.set(destination, route);
    // It may be beside the known one.
    if (!deleted && found) this.heard.needsCheck = true;
  }

  #routedChange(destination: string, { deleted }: { readonly deleted: boolean }): void {
    if (!deleted) this.#known.addRouted(destination);
    // Another route to the same destination may exist, with another metric.
    else if (this.#known.removeRouted(destination)) this.heard.needsCheck = true;
  }

  #device(device: ObservedDevice, { deleted }: { readonly deleted: boolean }): void {
    const { devices, addresses } = this.#known;
    const { name } = device;
    const found = devices.get(name);
    if (deleted ? !found : found && equalDevices(found, device)) return;
    if (deleted) devices.delete(name);
    else devices.set(name, device);
    const hasAddresses = (addresses.get(name)?.size ?? 0) > 0;
    // An interface takes addresses and routes along, some without an announcement.
    if (TUNNEL_DEVICES.includes(name) || this.#isParent(name) || hasAddresses) this.heard.needsCheck = true;
    if (deleted) addresses.delete(name);
  }

  #address({ device, address, deleted }: Extract<NodeChange, { object: 'address' }>): void {
    if (this.#known.hasAddress(device, address) !== deleted) return;
    this.#known.setAddress({ device, address }, { isThere: !deleted });
    if (TUNNEL_DEVICES.includes(device) || this.#isParent(device)) this.heard.needsCheck = true;
  }

  #neighbour({ deleted, device, address, mac }: Extract<NodeChange, { object: 'neighbour' }>): void {
    const { neighbours } = this.#known;
    const key = neighbourKey({ device, address });
    const found = neighbours.get(key);
    if (deleted ? !found : found?.mac === mac) return;
    if (deleted) neighbours.delete(key);
    else neighbours.set(key, { device, address, mac });
    this.heard.rest = true;
  }

  #forwarding({ deleted, device, mac, nodeAddress }: Extract<NodeChange, { object: 'forwarding' }>): void {
    const entry = { device, mac, nodeAddress };
    const entries = this.#known.forwarding.get(forwardingKey(entry)) ?? [];
    const isKnown = entries.some((known) => known.nodeAddress === nodeAddress);
    if (isKnown !== deleted) return;
    if (deleted) this.#known.removeForwarding(entry);
    else this.#known.addForwarding(entry);
    this.heard.rest = true;
    // A replacement is announced like an addition.
    if (!deleted && entries.length > 0) this.heard.needsCheck = true;
  }
}

/**
 * Pods' host interfaces by name that changed, or whose routes did.
 * @returns for each whether the change cannot come from a wiring
 */
export function podInterfacesOf(changes: readonly NodeChange[]): ReadonlyMap<string, boolean> {
  const found = new Map<string, boolean>();
  const note = (name: string, isMeddledWith: boolean) => found.set(name, isMeddledWith || found.get(name) === true);
  for (const change of changes) {
    if (change.object === 'pod-interface') note(change.name, change.isMeddledWith);
    if (change.object !== 'route' || ownerOf(change.route) !== 'pod' || change.route.device === undefined) continue;
    note(change.route.device, change.deleted);
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
