import { formatAddress } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

import { linkLocal } from '../wiring/network.js';
import type { ObservedLink } from '../wiring/observed.js';
import { bucketTicks, type RootQdisc } from '../wiring/token-bucket.js';
import {
  formatDestination,
  formatNeighbour,
  formatRoute,
  formatRule,
  type LinkChange,
  type LinkSpec,
  type Neighbour,
  type Route,
  type Rule,
  type TokenBucket,
} from '../wiring/step.js';

/** The fake's error for an errno of the kernel. */
export class Errno extends Error {
  readonly errno: string;

  constructor(errno: string, kernelText = '') {
    super(kernelText);
    this.errno = errno;
  }
}

interface MemoryLink {
  readonly index: number;
  name: string;
  readonly kind: string;
  mac: Mac;
  mtuBytes: number;
  txQueueLength: number;
  readonly queueCount: number;
  alias: string;
  up: boolean;
  /** The other end of a veth pair, and where it is. */
  peer: { readonly link: MemoryLink; readonly namespace: MemoryNamespace } | undefined;
}

/** Sysctls by path, with `*` for a link's name where it is about one. */
type Sysctls = Readonly<Record<string, string>>;

/** Sysctls that a new link inherits from its namespace. */
const INHERITED: Sysctls = {
  'net/ipv4/conf/*/forwarding': 'net/ipv4/ip_forward',
  'net/ipv6/conf/*/disable_ipv6': 'net/ipv6/conf/default/disable_ipv6',
  'net/ipv6/conf/*/forwarding': 'net/ipv6/conf/default/forwarding',
};

/** Sysctls of every new link. */
const LINK_SYSCTLS: Sysctls = {
  'net/ipv4/conf/*/route_localnet': '0',
  'net/ipv4/neigh/*/proxy_delay': '80',
  'net/ipv4/conf/*/proxy_arp': '0',
  'net/ipv4/conf/*/forwarding': '0',
  'net/ipv4/conf/*/rp_filter': '0',
};

/** Sysctls of every new link on a kernel with IPv6. */
const LINK_SYSCTLS_IPV6: Sysctls = {
  'net/ipv6/conf/*/accept_ra': '1',
  'net/ipv6/conf/*/disable_ipv6': '0',
  'net/ipv6/conf/*/addr_gen_mode': '0',
  'net/ipv6/conf/*/accept_dad': '1',
  'net/ipv6/conf/*/proxy_ndp': '0',
  'net/ipv6/conf/*/forwarding': '0',
};

/** Sysctls of a new namespace on a kernel with IPv6. */
const NAMESPACE_SYSCTLS_IPV6: Sysctls = {
  'net/ipv6/conf/all/disable_ipv6': '0',
  'net/ipv6/conf/default/disable_ipv6': '0',
  'net/ipv6/conf/lo/disable_ipv6': '0',
  'net/ipv6/conf/all/forwarding': '0',
  'net/ipv6/conf/default/forwarding': '0',
};

/** Defaults of a veth: queue length, and one queue per processor. */
const TX_QUEUE_LENGTH = 1000;
const PROCESSORS = 2;

const MTU_MIN_BYTES = 68;
const MTU_MAX_BYTES = 65_535;
const ALIAS_MAX_BYTES = 255;

/** The required attributes of a link. */
type NamedLink = Pick<LinkSpec, 'name' | 'mac' | 'mtuBytes'>;

/** One network namespace of the fake kernel, with the real one's rules as far as Podwire's steps can meet them. */
export class MemoryNamespace {
  readonly links: MemoryLink[] = [];
  readonly addresses: { readonly device: string; readonly address: string }[] = [];
  readonly routes: Route[] = [];
  /** Rules besides the ones of every namespace. */
  readonly rules: Rule[] = [];
  readonly neighbours: Neighbour[] = [];
  /** Root qdiscs by link; a link without an entry has the kernel's default. */
  readonly qdiscs = new Map<string, RootQdisc>();
  readonly sysctls = new Map<string, string>([['net/ipv4/ip_forward', '0']]);
  readonly #linkSysctls: Sysctls;
  readonly #hasIpv6: boolean;
  #nextIndex = 2;

  constructor({ hasIpv6 = true } = {}) {
    this.#hasIpv6 = hasIpv6;
    this.#linkSysctls = hasIpv6 ? { ...LINK_SYSCTLS, ...LINK_SYSCTLS_IPV6 } : LINK_SYSCTLS;
    for (const [key, value] of Object.entries(hasIpv6 ? NAMESPACE_SYSCTLS_IPV6 : {})) this.sysctls.set(key, value);
  }

  find(name: string): MemoryLink {
    const link = this.links.find((candidate) => candidate.name === name);
    if (!link) throw new Errno('ENODEV', `no link ${name}`);
    return link;
  }

  has(name: string): boolean {
    return this.links.some((link) => link.name === name);
  }

  /** Makes one end of a pair, or a link of another kind. */
  addLink({ name, mac, mtuBytes, ...queues }: Partial<LinkSpec> & NamedLink, kind: string): MemoryLink {
    if (this.has(name)) throw new Errno('EEXIST', `link ${name} exists`);
    checkMtu(mtuBytes);
    const { txQueueLength = TX_QUEUE_LENGTH, queueCount = PROCESSORS } = queues;
    const state = { alias: '', up: false, peer: undefined };
    const link = { index: this.#nextIndex++, name, kind, mac, mtuBytes, txQueueLength, queueCount, ...state };
    this.links.push(link);
    for (const [key, value] of Object.entries(this.#linkSysctls)) {
      const source = INHERITED[key];
      const inherited = source === undefined ? undefined : this.sysctls.get(source);
      this.sysctls.set(key.replace('*', name), inherited ?? value);
    }
    return link;
  }

  /** Removes a link with everything on it, and the other end of a pair. */
  removeLink(link: MemoryLink): void {
    this.#setDown(link);
    removeWhere(this.links, (candidate) => candidate === link);
    removeWhere(this.addresses, ({ device }) => device === link.name);
    this.qdiscs.delete(link.name);
    for (const key of Object.keys(this.#linkSysctls)) this.sysctls.delete(key.replace('*', link.name));
    const { peer } = link;
    link.peer = undefined;
    if (peer?.link.peer) peer.namespace.removeLink(peer.link);
  }

  /** Everything that is on it goes along, up or down (dev_change_name, net/core/dev.c). */
  renameLink(link: MemoryLink, name: string): void {
    const from = link.name;
    rewrite(this.addresses, (entry) => (entry.device === from ? { ...entry, device: name } : entry));
    rewrite(this.routes, (route) => (route.device === from ? { ...route, device: name } : route));
    rewrite(this.neighbours, (entry) => (entry.device === from ? { ...entry, device: name } : entry));
    for (const key of Object.keys(this.#linkSysctls)) {
      const value = this.sysctls.get(key.replace('*', from));
      this.sysctls.delete(key.replace('*', from));
      if (value !== undefined) this.sysctls.set(key.replace('*', name), value);
    }
    const qdisc = this.qdiscs.get(from);
    this.qdiscs.delete(from);
    if (qdisc) this.qdiscs.set(name, qdisc);
    link.name = name;
  }

  setLink(link: MemoryLink, { up, alias, mac, mtuBytes, txQueueLength }: LinkChange): void {
    // A change of a MAC address removes the neighbours of the link, permanent ones too (neigh_changeaddr, net/core/neighbour.c).
    if (mac !== undefined && mac !== link.mac) removeWhere(this.neighbours, ({ device }) => device === link.name);
    if (mac !== undefined) link.mac = mac;
    if (txQueueLength !== undefined) link.txQueueLength = txQueueLength;
    if (mtuBytes !== undefined) {
      checkMtu(mtuBytes);
      link.mtuBytes = mtuBytes;
    }
    if (alias !== undefined) {
      if (Buffer.byteLength(alias) > ALIAS_MAX_BYTES) throw new Errno('EINVAL', 'alias too long');
      link.alias = alias;
    }
    if (up === false && link.up) this.#setDown(link);
    if (up !== undefined) link.up = up;
  }

  addAddress(device: string, address: string): void {
    this.find(device);
    if (isIpv6(address)) this.#requireIpv6(device, 'EACCES');
    if (this.addresses.some((entry) => entry.device === device && entry.address === address)) throw new Errno('EEXIST');
    this.addresses.push({ device, address });
  }

  setAddress(device: string, address: string): void {
    if (!this.addresses.some((entry) => entry.device === device && entry.address === address)) {
      this.addAddress(device, address);
    }
  }

  deleteAddress(device: string, address: string): void {
    const removed = removeWhere(this.addresses, (entry) => entry.device === device && entry.address === address);
    if (removed === 0) throw new Errno('EADDRNOTAVAIL');
    // The last IPv4 address of a link takes all its IPv4 routes along (fib_inetaddr_event, net/ipv4/fib_frontend.c).
    const isLast = !this.addresses.some((entry) => entry.device === device && !isIpv6(entry.address));
    if (isIpv6(address) || !isLast) return;
    removeWhere(this.routes, (route) => route.device === device && !isIpv6(route.destination));
  }

  addRoute(route: Route): void {
    this.#checkRoute(route);
    if (this.routes.some(isInPlaceOf(route))) throw new Errno('EEXIST');
    this.routes.push(route);
  }

  replaceRoute(route: Route): void {
    this.#checkRoute(route);
    removeWhere(this.routes, isInPlaceOf(route));
    this.routes.push(route);
  }

  deleteRoute(route: Route): void {
    const text = formatRoute(route);
    if (removeWhere(this.routes, (candidate) => formatRoute(candidate) === text) === 0) throw new Errno('ESRCH');
  }

  /** Rules are on no link, and outlive all of them. */
  addRule(rule: Rule): void {
    if (isIpv6(rule.source) && !this.#hasIpv6) throw new Errno('EAFNOSUPPORT');
    if (this.rules.some(isSameRule(rule))) throw new Errno('EEXIST');
    this.rules.push(rule);
  }

  deleteRule(rule: Rule): void {
    if (removeWhere(this.rules, isSameRule(rule)) === 0) throw new Errno('ENOENT');
  }

  setNeighbour(neighbour: Neighbour): void {
    const { up } = this.find(neighbour.device);
    if (isIpv6(neighbour.address)) this.#requireIpv6(neighbour.device, 'EINVAL');
    else if (!up) throw new Errno('ENETDOWN', 'device is down');
    removeWhere(this.neighbours, isEntry(neighbour));
    this.neighbours.push(neighbour);
  }

  deleteNeighbour(neighbour: Neighbour): void {
    this.find(neighbour.device);
    if (removeWhere(this.neighbours, isEntry(neighbour)) === 0) throw new Errno('ENOENT');
  }

  setBucket(device: string, bucket: TokenBucket): void {
    this.find(device);
    const { rateBytesPerSecond, limitBytes } = bucket;
    this.qdiscs.set(device, {
      kind: 'tbf',
      bucket: { rateBytesPerSecond, limitBytes, bucketTicks: bucketTicks(bucket) },
    });
  }

  deleteQdisc(device: string): void {
    this.find(device);
    if (!this.qdiscs.delete(device)) throw new Errno('ENOENT');
  }

  writeSysctl(key: string, value: string): void {
    if (!this.sysctls.has(key)) throw new Errno('ENOENT');
    if (!/^-?\d+$/.test(value)) throw new Errno('EINVAL');
    const before = new Map(this.sysctls);
    this.sysctls.set(key, value);
    if (key === 'net/ipv4/ip_forward') {
      // The namespace's switch turns every link's (inet_forward_change, net/ipv4/devinet.c).
      for (const { name } of this.links) this.sysctls.set(`net/ipv4/conf/${name}/forwarding`, value);
    }
    const [, device = '', setting = ''] = /^net\/ipv6\/conf\/(.+)\/(forwarding|disable_ipv6)$/.exec(key) ?? [];
    // IPv6 sysctls do the same (addrconf_fixup_forwarding, addrconf_disable_ipv6, net/ipv6/addrconf.c).
    const switched = device === 'all' ? ['default', 'lo', ...this.links.map(({ name }) => name)] : [device];
    for (const name of switched) {
      const own = `net/ipv6/conf/${name}/${setting}`;
      if (this.sysctls.has(own)) this.sysctls.set(own, value);
      if (setting !== 'disable_ipv6') continue;
      if (value !== '0') this.#loseIpv6(name);
      else if (before.get(own) !== '0') this.#regainIpv6(name);
    }
  }

  /** Content of the namespace, as `ip` and `sysctl` would print it; sysctls of links only where they differ from the kernel's defaults. */
  print(): string[] {
    const links = this.links.map(
      ({ name, kind, mac, mtuBytes, txQueueLength, alias, up }) =>
        `link ${name} ${kind} address ${mac} mtu ${mtuBytes} ${up ? 'up' : 'down'}` +
        (txQueueLength === TX_QUEUE_LENGTH ? '' : ` qlen ${txQueueLength}`) +
        (alias === '' ? '' : ` alias "${alias}"`),
    );
    const defaults = new Map([
      ...Object.entries(NAMESPACE_SYSCTLS_IPV6),
      ...this.links.flatMap(({ name }) =>
        Object.entries(this.#linkSysctls).map(([key, value]): [string, string] => [key.replace('*', name), value]),
      ),
    ]);
    const changed = [...this.sysctls].filter(([key, value]) => defaults.get(key) !== value);
    return [
      ...links,
      ...this.addresses.map(({ address, device }) => `address ${formatDestination(address)} dev ${device}`).sort(),
      ...this.routes.map((route) => `route ${formatRoute(route)}`).sort(),
      ...this.rules.map((rule) => `rule ${formatRule(rule)}`).sort(),
      ...this.neighbours.map((neighbour) => `neighbour ${formatNeighbour(neighbour)}`).sort(),
      ...[...this.qdiscs].map(([device, qdisc]) => `qdisc ${device} ${JSON.stringify(qdisc)}`).sort(),
      ...changed.map(([key, value]) => `sysctl ${key}=${value}`).sort(),
    ];
  }

  #checkRoute({ device, destination, gateway, onlink }: Route): void {
    const { up } = this.find(device);
    if (isIpv6(destination)) this.#requireIpv6(device, 'EACCES');
    if (!up) throw new Errno('ENETDOWN', 'Device for nexthop is not up');
    // A link-local next hop is on the link by itself.
    if (gateway === undefined || onlink || gateway.startsWith('fe80:')) return;
    const onLink = (candidate: Route) => candidate.device === device && candidate.destination === `${gateway}/32`;
    if (!this.routes.some((candidate) => candidate.scope === 'link' && onLink(candidate))) {
      throw new Errno('ENETUNREACH', 'Nexthop has invalid gateway');
    }
  }

  #requireIpv6(device: string, errno: string): void {
    if (!this.#hasIpv6) throw new Errno('EOPNOTSUPP');
    if (this.sysctls.get(`net/ipv6/conf/${device}/disable_ipv6`) !== '0') {
      throw new Errno(errno, 'IPv6 is disabled on this device.');
    }
  }

  /** A link that goes down loses its routes and neighbours, permanent ones too, and its IPv6 addresses. */
  #setDown(link: MemoryLink): void {
    link.up = false;
    removeWhere(this.routes, ({ device }) => device === link.name);
    removeWhere(this.neighbours, ({ device }) => device === link.name);
    this.#loseIpv6(link.name);
  }

  /** A link that carries packets gets its link-local address back (addrconf_dev_config, net/ipv6/addrconf.c). */
  #regainIpv6(name: string): void {
    const link = this.links.find((candidate) => candidate.name === name);
    if (!link || !show(link).running || this.sysctls.get(`net/ipv6/conf/${name}/addr_gen_mode`) !== '0') return;
    this.setAddress(name, `${formatAddress(linkLocal(link.mac))}/64`);
  }

  #loseIpv6(name: string): void {
    removeWhere(this.addresses, ({ device, address }) => device === name && isIpv6(address));
    removeWhere(this.routes, ({ device, destination }) => device === name && isIpv6(destination));
    removeWhere(this.neighbours, ({ device, address }) => device === name && isIpv6(address));
  }
}

function isIpv6(text: string): boolean {
  return text.includes(':');
}

/** A table has one route to a destination for each metric. */
function isInPlaceOf({ destination, metric, table }: Route): (other: Route) => boolean {
  return (other) => other.destination === destination && other.metric === metric && other.table === table;
}

function isSameRule(rule: Rule): (other: Rule) => boolean {
  return (other) => formatRule(other) === formatRule(rule);
}

/** A link as the kernel shows it. */
export function show({ alias, up, peer, ...link }: MemoryLink): ObservedLink {
  return {
    ...link,
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

function rewrite<Item>(items: Item[], change: (item: Item) => Item): void {
  items.splice(0, items.length, ...items.map(change));
}

/** @returns how many were removed */
function removeWhere<Item>(items: Item[], matches: (item: Item) => boolean): number {
  const kept = items.filter((item) => !matches(item));
  const removed = items.length - kept.length;
  items.splice(0, items.length, ...kept);
  return removed;
}
