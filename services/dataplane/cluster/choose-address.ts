import type { Address, Family } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import type { LinkAddress, NetworkLink, NetworkRoute, NodeNetworkState } from '../kernel/node-network-interface.js';
import type { AddressMethod } from '../node/address-method.js';

/** An address by which other nodes reach this one. */
export interface ChosenAddress {
  readonly address: Address;
  /** Prefix length of its subnet, in bits. */
  readonly length: number;
}

/** Interfaces that Podwire makes. */
const OWN = /^podw|\.podwire$/;

/** Interfaces of container engines, of other pod networks and of kube-proxy: their addresses are no other node's to reach. */
const OTHERS =
  /^(lo|docker\d+|br-[0-9a-f]{12}|cbr\d+|cni\d+|cali|tunl|vxlan(-v6)?\.calico|wireguard\.cali|wg-v6\.cali|flannel|cilium|lxc|virbr|lxcbr|veth|dummy|kube-ipvs|nodelocaldns)/;

/** Whether an interface is the node's own way to others: no pod's, no tunnel's, no bridge's of a container engine. */
export function isNodeInterface({ name }: NetworkLink): boolean {
  return !OWN.test(name) && !OTHERS.test(name);
}

const LINK_LOCAL = ['169.254.0.0/16', '127.0.0.0/8', 'fe80::/10', '::1/128'].map((text): Prefix => {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text}: ${parsed.fault}`);
  return parsed.prefix;
});

/** Addresses of one family that others may reach a link at. Of IPv6 in their order, as the kernel's changes with each new one. */
export function addressesOf(
  link: NetworkLink,
  family: Family,
  { addresses }: NodeNetworkState,
): readonly LinkAddress[] {
  const found = addresses.filter(
    ({ linkIndex, address, lasting }) =>
      linkIndex === link.index &&
      address.family === family &&
      lasting &&
      !LINK_LOCAL.some((prefix) => prefixContains(prefix, address)),
  );
  return family === 4 ? found : found.toSorted((a, b) => (a.address.value < b.address.value ? -1 : 1));
}

/** Finds a node's address of a family. Interfaces that are switched off, and Podwire's own, are never looked at. */
export function chooseAddress(
  method: AddressMethod,
  family: Family,
  state: NodeNetworkState,
): ChosenAddress | undefined {
  const links = state.links.filter(({ up, name }) => up && !OWN.test(name));
  const candidates = links.filter(isNodeInterface);
  switch (method.type) {
    case 'none':
      return undefined;
    case 'address':
      return { address: method.address, length: method.length };
    case 'auto':
      return byDefaultRoute(candidates, family, state) ?? firstOf(candidates, family, state);
    case 'interface':
      for (const pattern of method.patterns) {
        const found = firstOf(
          links.filter(({ name }) => pattern.test(name)),
          family,
          state,
        );
        if (found) return found;
      }
      return undefined;
    case 'skip-interface': {
      const left = candidates.filter(({ name }) => !method.patterns.some((pattern) => pattern.test(name)));
      return firstOf(left, family, state);
    }
    case 'cidr': {
      const all = candidates.flatMap((link) => addressesOf(link, family, state));
      return chosen(all.find(({ address }) => method.prefixes.some((prefix) => prefixContains(prefix, address))));
    }
    case 'can-reach':
      return byRoute(state.routes, links, { target: method.address, state });
  }
}

function firstOf(links: readonly NetworkLink[], family: Family, state: NodeNetworkState): ChosenAddress | undefined {
  for (const link of links) {
    const [first] = addressesOf(link, family, state);
    if (first) return chosen(first);
  }
  return undefined;
}

function byDefaultRoute(
  links: readonly NetworkLink[],
  family: Family,
  state: NodeNetworkState,
): ChosenAddress | undefined {
  const defaults = state.routes.filter(({ destination }) => destination.length === 0);
  return byRoute(defaults, links, { target: { family, value: 0n }, state });
}

interface Search {
  readonly target: Address;
  readonly state: NodeNetworkState;
}

/** As the kernel looks up a route: the longest prefix, then the lowest metric. */
function byRoute(
  routes: readonly NetworkRoute[],
  links: readonly NetworkLink[],
  { target, state }: Search,
): ChosenAddress | undefined {
  const leading = routes
    .filter(({ destination }) => prefixContains(destination, target))
    .toSorted(
      (a, b) => b.destination.length - a.destination.length || a.metric - b.metric || a.linkIndex - b.linkIndex,
    );
  for (const { linkIndex, source } of leading) {
    const link = links.find(({ index }) => index === linkIndex);
    if (!link) continue;
    const addresses = addressesOf(link, target.family, state);
    const found = addresses.find(({ address }) => address.value === source?.value) ?? addresses[0];
    if (found) return chosen(found);
  }
  return undefined;
}

function chosen(found: LinkAddress | undefined): ChosenAddress | undefined {
  return found && { address: found.address, length: found.length };
}
