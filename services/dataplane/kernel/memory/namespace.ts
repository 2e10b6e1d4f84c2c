import type { Mac } from '@podwire/shared/net/mac';

import { formatDestination, formatNeighbour, formatRoute } from '../../plan/notation.js';
import type { ObservedLink } from '../../plan/observed.js';
import type { LinkChange, LinkSpec, Neighbour, Route } from '../../plan/step.js';

/** What the fake throws where the kernel answers with an errno. */
export class Errno extends Error {
  readonly errno: string;

  constructor(errno: string, kernelText = '') {
    super(kernelText);
    this.errno = errno;
  }
}

export interface MemoryLink {
  readonly index: number;
  readonly name: string;
  readonly kind: string;
  mac: Mac;
  mtuBytes: number;
  alias: string;
  up: boolean;
  /** The other end of a veth pair, and where it is. */
  peer: { readonly link: MemoryLink; readonly namespace: MemoryNamespace } | undefined;
}

/** What the kernel gives every new link, by sysctl path with `*` for the link's name. */
const LINK_SYSCTLS: Readonly<Record<string, string>> = {
  'net/ipv4/conf/*/route_localnet': '0',
  'net/ipv4/neigh/*/proxy_delay': '80',
  'net/ipv4/conf/*/proxy_arp': '0',
  'net/ipv4/conf/*/forwarding': '0',
  'net/ipv4/conf/*/rp_filter': '0',
  'net/ipv6/conf/*/accept_ra': '1',
};

const MTU_MIN_BYTES = 68;
const MTU_MAX_BYTES = 65_535;
const ALIAS_MAX_BYTES = 255;

/** One network namespace of the fake kernel, with the real one's rules as far as Podwire's steps can meet them. */
export class MemoryNamespace {
  readonly links: MemoryLink[] = [];
  readonly addresses: { readonly device: string; readonly address: string }[] = [];
  readonly routes: Route[] = [];
  readonly neighbours: Neighbour[] = [];
  readonly sysctls = new Map<string, string>([['net/ipv4/ip_forward', '0']]);
  #nextIndex = 2;

  find(name: string): MemoryLink {
    const link = this.links.find((candidate) => candidate.name === name);
    if (!link) throw new Errno('ENODEV', `no link ${name}`);
    return link;
  }

  has(name: string): boolean {
    return this.links.some((link) => link.name === name);
  }

  /** Makes one end of a pair, or a link of another kind. */
  addLink({ name, mac, mtuBytes }: LinkSpec, kind: string): MemoryLink {
    if (this.has(name)) throw new Errno('EEXIST', `link ${name} exists`);
    checkMtu(mtuBytes);
    const link = { index: this.#nextIndex++, name, kind, mac, mtuBytes, alias: '', up: false, peer: undefined };
    this.links.push(link);
    for (const [key, value] of Object.entries(LINK_SYSCTLS)) this.sysctls.set(key.replace('*', name), value);
    return link;
  }

  /** Takes a link away with everything on it; the other end of a pair goes too. */
  removeLink(link: MemoryLink): void {
    this.#downed(link);
    removeWhere(this.links, (candidate) => candidate === link);
    removeWhere(this.addresses, ({ device }) => device === link.name);
    for (const key of Object.keys(LINK_SYSCTLS)) this.sysctls.delete(key.replace('*', link.name));
    const { peer } = link;
    link.peer = undefined;
    if (peer?.link.peer) peer.namespace.removeLink(peer.link);
  }

  setLink(link: MemoryLink, { up, alias, mac, mtuBytes }: LinkChange): void {
    // With its MAC address a link loses its neighbours, permanent ones too (neigh_changeaddr, net/core/neighbour.c).
    if (mac !== undefined && mac !== link.mac) removeWhere(this.neighbours, ({ device }) => device === link.name);
    if (mac !== undefined) link.mac = mac;
    if (mtuBytes !== undefined) {
      checkMtu(mtuBytes);
      link.mtuBytes = mtuBytes;
    }
    if (alias !== undefined) {
      if (Buffer.byteLength(alias) > ALIAS_MAX_BYTES) throw new Errno('EINVAL', 'alias too long');
      link.alias = alias;
    }
    if (up === false && link.up) this.#downed(link);
    if (up !== undefined) link.up = up;
  }

  addAddress(device: string, address: string): void {
    this.find(device);
    if (this.addresses.some((entry) => entry.device === device && entry.address === address)) throw new Errno('EEXIST');
    this.addresses.push({ device, address });
  }

  deleteAddress(device: string, address: string): void {
    const removed = removeWhere(this.addresses, (entry) => entry.device === device && entry.address === address);
    if (removed === 0) throw new Errno('EADDRNOTAVAIL');
    // With its last address a link loses all its routes (fib_inetaddr_event, net/ipv4/fib_frontend.c).
    if (!this.addresses.some((entry) => entry.device === device)) {
      removeWhere(this.routes, (route) => route.device === device);
    }
  }

  addRoute(route: Route): void {
    this.#checkRoute(route);
    if (this.routes.some(({ destination }) => destination === route.destination)) throw new Errno('EEXIST');
    this.routes.push(route);
  }

  replaceRoute(route: Route): void {
    this.#checkRoute(route);
    removeWhere(this.routes, ({ destination }) => destination === route.destination);
    this.routes.push(route);
  }

  deleteRoute(route: Route): void {
    const text = formatRoute(route);
    if (removeWhere(this.routes, (candidate) => formatRoute(candidate) === text) === 0) throw new Errno('ESRCH');
  }

  setNeighbour(neighbour: Neighbour): void {
    if (!this.find(neighbour.device).up) throw new Errno('ENETDOWN', 'device is down');
    removeWhere(this.neighbours, isEntry(neighbour));
    this.neighbours.push(neighbour);
  }

  deleteNeighbour(neighbour: Neighbour): void {
    this.find(neighbour.device);
    if (removeWhere(this.neighbours, isEntry(neighbour)) === 0) throw new Errno('ENOENT');
  }

  writeSysctl(key: string, value: string): void {
    if (!this.sysctls.has(key)) throw new Errno('ENOENT');
    if (!/^-?\d+$/.test(value)) throw new Errno('EINVAL');
    this.sysctls.set(key, value);
    if (key !== 'net/ipv4/ip_forward') return;
    // The namespace's switch turns every link's (inet_forward_change, net/ipv4/devinet.c).
    for (const { name } of this.links) this.sysctls.set(`net/ipv4/conf/${name}/forwarding`, value);
  }

  /** What is there, as `ip` and `sysctl` would print it; sysctls of links only where they differ from the kernel's defaults. */
  print(): string[] {
    const links = this.links.map(
      ({ name, kind, mac, mtuBytes, alias, up }) =>
        `link ${name} ${kind} address ${mac} mtu ${mtuBytes} ${up ? 'up' : 'down'}` +
        (alias === '' ? '' : ` alias "${alias}"`),
    );
    const defaults = new Map(
      this.links.flatMap(({ name }) =>
        Object.entries(LINK_SYSCTLS).map(([key, value]): [string, string] => [key.replace('*', name), value]),
      ),
    );
    const changed = [...this.sysctls].filter(([key, value]) => defaults.get(key) !== value);
    return [
      ...links,
      ...this.addresses.map(({ address, device }) => `address ${formatDestination(address)} dev ${device}`).sort(),
      ...this.routes.map((route) => `route ${formatRoute(route)}`).sort(),
      ...this.neighbours.map((neighbour) => `neighbour ${formatNeighbour(neighbour)}`).sort(),
      ...changed.map(([key, value]) => `sysctl ${key}=${value}`).sort(),
    ];
  }

  #checkRoute({ device, gateway }: Route): void {
    if (!this.find(device).up) throw new Errno('ENETDOWN', 'Device for nexthop is not up');
    const onLink = (candidate: Route) => candidate.device === device && candidate.destination === `${gateway ?? ''}/32`;
    if (gateway !== undefined && !this.routes.some((candidate) => candidate.scope === 'link' && onLink(candidate))) {
      throw new Errno('ENETUNREACH', 'Nexthop has invalid gateway');
    }
  }

  /** A link that goes down loses its routes and neighbours, permanent ones too. */
  #downed(link: MemoryLink): void {
    link.up = false;
    removeWhere(this.routes, ({ device }) => device === link.name);
    removeWhere(this.neighbours, ({ device }) => device === link.name);
  }
}

/** A link as the kernel shows it. */
export function show({ name, index, kind, mac, mtuBytes, alias, up, peer }: MemoryLink): ObservedLink {
  return {
    name,
    index,
    kind,
    mac,
    mtuBytes,
    alias: alias === '' ? null : alias,
    up,
    running: up && (peer?.link.up ?? true),
    peerIndex: peer?.link.index,
  };
}

/** @throws Errno EINVAL when a veth cannot have the MTU */
export function checkMtu(mtuBytes: number): void {
  if (mtuBytes < MTU_MIN_BYTES) throw new Errno('EINVAL', 'mtu less than device minimum');
  if (mtuBytes > MTU_MAX_BYTES) throw new Errno('EINVAL', 'mtu greater than device maximum');
}

function isEntry({ device, address }: Neighbour): (other: Neighbour) => boolean {
  return (other) => other.device === device && other.address === address;
}

/** @returns how many were removed */
function removeWhere<Item>(items: Item[], matches: (item: Item) => boolean): number {
  const kept = items.filter((item) => !matches(item));
  const removed = items.length - kept.length;
  items.splice(0, items.length, ...kept);
  return removed;
}
