import { familyBits, formatAddress, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { constantPrefix, parsePrefix, prefixContains, splitCidr, type Prefix } from '@podwire/shared/net/prefix';

import { LIFETIMES, type LinkAddress, type NetworkLink, type NetworkRoute, type NodeNetworkState } from './links.js';

/**
 * Method of finding a node's address of one family. The keywords are Calico's (`IP_AUTODETECTION_METHOD`), so operators can reuse
 * their settings.
 */
export type AddressMethod =
  /** The address of the interface with the default route, else of the first one with an address. */
  | { readonly type: 'auto' }
  /** The node has no address of the family. */
  | { readonly type: 'none' }
  | { readonly type: 'address'; readonly address: Address; readonly length: number }
  /** The first interface whose name matches one of these, in their order. */
  | { readonly type: 'interface'; readonly patterns: readonly RegExp[] }
  /** The first interface whose name matches none. */
  | { readonly type: 'skip-interface'; readonly patterns: readonly RegExp[] }
  /** The first address in one of these. */
  | { readonly type: 'cidr'; readonly prefixes: readonly Prefix[] }
  /** The source address that the node uses towards this one. */
  | { readonly type: 'can-reach'; readonly address: Address };

type ReadMethod =
  { readonly ok: true; readonly method: AddressMethod } | { readonly ok: false; readonly fault: string };

const FORMS =
  'auto, none, an address with length, interface=REGEX, skip-interface=REGEX, cidr=LIST or can-reach=ADDRESS';

/** Reads the text of a setting. */
export function readAddressMethod(text: string, family: Family): ReadMethod {
  if (text === 'auto' || text === 'none') return { ok: true, method: { type: text } };
  const own = splitCidr(text);
  if (own) return readFixedAddress(own, family);
  const [, word = '', argument = ''] = /^([a-z-]+)=(.+)$/s.exec(text) ?? [];
  switch (word) {
    case 'interface':
    case 'skip-interface':
      return readPatterns(word, argument);
    case 'cidr':
      return readPrefixes(argument, family);
    case 'can-reach':
      return readTarget(argument, family);
    default:
      return { ok: false, fault: `must be ${FORMS}` };
  }
}

function readFixedAddress(
  { address, length }: { readonly address: Address; readonly length: number },
  family: Family,
): ReadMethod {
  if (address.family !== family) return { ok: false, fault: `must be an IPv${family} address` };
  return { ok: true, method: { type: 'address', address, length } };
}

function readPatterns(type: 'interface' | 'skip-interface', argument: string): ReadMethod {
  const patterns: RegExp[] = [];
  for (const part of argument.split(',')) {
    const pattern = part.trim() === '' ? undefined : readPattern(part.trim());
    if (!pattern) return { ok: false, fault: `has ${JSON.stringify(part)}, which must be a regular expression` };
    patterns.push(pattern);
  }
  return { ok: true, method: { type, patterns } };
}

function readPattern(text: string): RegExp | undefined {
  try {
    return new RegExp(text, 'u');
  } catch {
    return undefined;
  }
}

function readPrefixes(argument: string, family: Family): ReadMethod {
  const prefixes: Prefix[] = [];
  for (const part of argument.split(',')) {
    const parsed = parsePrefix(part.trim());
    if (!parsed.ok) return { ok: false, fault: `has ${JSON.stringify(part)}: ${parsed.fault}` };
    if (parsed.prefix.family !== family)
      return { ok: false, fault: `has ${JSON.stringify(part)}, which must be an IPv${family} prefix` };
    prefixes.push(parsed.prefix);
  }
  return { ok: true, method: { type: 'cidr', prefixes } };
}

function readTarget(argument: string, family: Family): ReadMethod {
  const address = parseAddress(argument.trim());
  if (address?.family !== family)
    return { ok: false, fault: `has ${JSON.stringify(argument)}, which must be an IPv${family} address` };
  return { ok: true, method: { type: 'can-reach', address } };
}

/** The method as text for messages. */
export function describeMethod(method: AddressMethod): string {
  switch (method.type) {
    case 'auto':
    case 'none':
      return method.type;
    case 'address':
      return `${formatAddress(method.address)}/${method.length}`;
    case 'interface':
    case 'skip-interface':
      return `${method.type}=${method.patterns.map(({ source }) => source).join(',')}`;
    case 'cidr':
      return `cidr=${method.prefixes.map((prefix) => `${formatAddress(prefix)}/${prefix.length}`).join(',')}`;
    case 'can-reach':
      return `can-reach=${formatAddress(method.address)}`;
  }
}

/** An address by which other nodes reach this one. */
export interface ChosenAddress {
  readonly address: Address;
  /** Prefix length of its subnet, in bits. */
  readonly length: number;
}

/** Names of Podwire's interfaces. */
const OWN_INTERFACES = /^podw|\.podwire$/;

/** Interfaces of other programs. Other nodes cannot reach their addresses. */
const FOREIGN_INTERFACES = [
  // Container engines and virtual machines.
  /^(lo$|veth|dummy|virbr|vmnet|tap|lxcbr|lxdbr|incusbr|br-[0-9a-f]{12}|docker|podman\d|nerdctl\d)/,
  // Pod networks, kube-proxy, and Open vSwitch without the bridges that operators name.
  /^(cali|vxlan(-v6)?\.calico|wireguard\.cali|flannel|cilium|lxc|weave|antrea-|ovn-k8s-|cbr|cni)/,
  /^(kube-bridge|kube-dummy|kube-ipvs|nodelocaldns|ovs-|br-(int|tun)$|(genev|vxlan)_sys_)/,
  // Virtual private networks, IPIP.
  /^(tailscale|tun|nordlynx|wg|wt\d|zt)/,
];

/** Whether an interface connects the node to its network: not a pod's, a tunnel's, or another program's. */
export function isNodeInterface({ name }: NetworkLink): boolean {
  return !OWN_INTERFACES.test(name) && !FOREIGN_INTERFACES.some((pattern) => pattern.test(name));
}

/** Subnets whose hosts are neighbours of the node: each packet to one of their addresses costs an entry of the neighbour table. */
export function connectedSubnets({ links, routes }: NodeNetworkState): readonly Prefix[] {
  const withNeighbours = new Set(links.filter(({ mac }) => mac !== null).map(({ index }) => index));
  return routes
    .filter(({ isOnLink, linkIndex }) => isOnLink && withNeighbours.has(linkIndex))
    .map(({ destination }) => destination)
    .filter(({ family, length }) => length > 0 && length < familyBits(family))
    .filter((subnet) => !LINK_LOCAL.some((prefix) => prefix.family === 6 && prefixContains(prefix, subnet)));
}

const LINK_LOCAL = ['169.254.0.0/16', '127.0.0.0/8', 'fe80::/10', '::1/128'].map(constantPrefix);

/**
 * A link's addresses of one family that other nodes can reach, the preferred first. Addresses without a subnet come last: keepalived
 * and kube-vip add such addresses of services, and take them away. IPv6 addresses are sorted, as the kernel lists the newest first.
 */
export function addressesOf(
  link: NetworkLink,
  family: Family,
  { addresses }: NodeNetworkState,
): readonly LinkAddress[] {
  const found = addresses.filter(
    ({ linkIndex, address, isUsable }) =>
      linkIndex === link.index &&
      address.family === family &&
      isUsable &&
      !LINK_LOCAL.some((prefix) => prefixContains(prefix, address)),
  );
  const sorted = family === 4 ? found : found.toSorted((a, b) => (a.address.value < b.address.value ? -1 : 1));
  return sorted.toSorted((a, b) => rankOf(a) - rankOf(b));
}

function rankOf(address: LinkAddress): number {
  return (isHost(address) ? LIFETIMES.length : 0) + LIFETIMES.indexOf(address.lifetime);
}

function isHost({ address, length }: ChosenAddress): boolean {
  return length === familyBits(address.family);
}

/**
 * Finds a node's address of a family. Ignores interfaces that are set down, and Podwire's own.
 * @param registered - the node's address so far: it stays while the method could choose it, whatever is added beside it
 */
export function chooseAddress(
  method: AddressMethod,
  family: Family,
  state: NodeNetworkState,
  registered?: Address,
): ChosenAddress | undefined {
  if (method.type === 'address') return { address: method.address, length: method.length };
  const stays = alternatives(method, family, state).find(({ address }) => address.value === registered?.value);
  return toChosenAddress(stays ?? candidatesOf(method, family, state)[0]);
}

/**
 * The addresses that a method could choose as well as its first one: with a subnet like that one, or without. Deprecated ones are
 * left out while there is another.
 */
export function alternatives(method: AddressMethod, family: Family, state: NodeNetworkState): readonly LinkAddress[] {
  const candidates = candidatesOf(method, family, state);
  const isDeprecated = ({ lifetime }: LinkAddress) => lifetime === 'deprecated';
  return candidates.filter(
    (address, _, [first]) =>
      first && isHost(address) === isHost(first) && (isDeprecated(first) || !isDeprecated(address)),
  );
}

/** The addresses that fit a method, the preferred first. */
function candidatesOf(method: AddressMethod, family: Family, state: NodeNetworkState): readonly LinkAddress[] {
  const links = state.links.filter(({ up, name }) => up && !OWN_INTERFACES.test(name));
  const nodeLinks = links.filter(isNodeInterface);
  const of = (some: readonly NetworkLink[]) => some.flatMap((link) => addressesOf(link, family, state));
  const isNamed = ({ name }: NetworkLink, patterns: readonly RegExp[]) => patterns.some((each) => each.test(name));
  switch (method.type) {
    case 'none':
    case 'address':
      return [];
    case 'auto': {
      const byDefault = byDefaultRoute(nodeLinks, family, state);
      return byDefault.length > 0 ? byDefault : of(nodeLinks);
    }
    case 'interface':
      return method.patterns.map((each) => of(links.filter((link) => isNamed(link, [each])))).find(isFilled) ?? [];
    case 'skip-interface':
      return of(nodeLinks.filter((link) => !isNamed(link, method.patterns)));
    case 'cidr':
      return of(nodeLinks).filter(({ address }) => method.prefixes.some((prefix) => prefixContains(prefix, address)));
    case 'can-reach':
      return byRoute(state.routes, links, { target: method.address, state });
  }
}

function isFilled(addresses: readonly LinkAddress[]): boolean {
  return addresses.length > 0;
}

function byDefaultRoute(
  links: readonly NetworkLink[],
  family: Family,
  state: NodeNetworkState,
): readonly LinkAddress[] {
  const defaults = state.routes.filter(({ destination }) => destination.length === 0);
  return byRoute(defaults, links, { target: { family, value: 0n }, state });
}

interface RouteLookup {
  readonly target: Address;
  readonly state: NodeNetworkState;
}

/**
 * Route lookup as in the kernel: the longest prefix, then the lowest metric.
 * @returns the addresses of the route's link; its source address comes before the addresses of the same kind, as keepalived can set
 * it to an address of a service
 */
function byRoute(
  routes: readonly NetworkRoute[],
  links: readonly NetworkLink[],
  { target, state }: RouteLookup,
): readonly LinkAddress[] {
  const leading = routes
    .filter(({ destination }) => prefixContains(destination, target))
    .toSorted(
      (a, b) => b.destination.length - a.destination.length || a.metric - b.metric || a.linkIndex - b.linkIndex,
    );
  for (const { linkIndex, source } of leading) {
    const link = links.find(({ index }) => index === linkIndex);
    const addresses = link ? addressesOf(link, target.family, state) : [];
    const isOther = ({ address }: LinkAddress) => Number(address.value !== source?.value);
    const sorted = addresses.toSorted((a, b) => Number(isHost(a)) - Number(isHost(b)) || isOther(a) - isOther(b));
    if (sorted.length > 0) return sorted;
  }
  return [];
}

function toChosenAddress(found: LinkAddress | undefined): ChosenAddress | undefined {
  return found && { address: found.address, length: found.length };
}
