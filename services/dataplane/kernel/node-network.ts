import {
  openNamespace,
  type Address as KernelAddress,
  type Link,
  type MonitorEvent,
  type Namespace,
  type NetlinkError,
  type Route,
} from '@podwire/netlink';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains, splitCidr } from '@podwire/shared/net/prefix';

import type {
  LinkAddress,
  NetworkLink,
  NetworkRoute,
  NodeNetwork,
  NodeNetworkListener,
  NodeNetworkState,
} from '../node/links.js';
import { ROUTE_PROTOCOL } from '../wiring/network.js';
import type { NodeMonitor } from './node-monitor.js';
import { MAIN_TABLE } from './pod-observe.js';
import { callKernel, failureOfNetlink } from './refusal.js';

/** IFA_F_* of linux/if_addr.h; the first has another meaning for IPv4. */
const IFA_F_TEMPORARY = 0x01;
const IFA_F_DADFAILED = 0x08;
const IFA_F_DEPRECATED = 0x20;
const IFA_F_TENTATIVE = 0x40;
const IFA_F_PERMANENT = 0x80;

/** The real node, through rtnetlink, in the network namespace of this process. */
export class NetlinkNodeNetwork implements NodeNetwork {
  readonly #node: Namespace;
  readonly #monitor: NodeMonitor;
  /** Links with addresses by index, as last read. */
  readonly #links = new Map<number, string>();

  private constructor(node: Namespace, monitor: NodeMonitor) {
    this.#node = node;
    this.#monitor = monitor;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(monitor: NodeMonitor): Promise<NetlinkNodeNetwork> {
    return new NetlinkNodeNetwork(await callKernel(() => openNamespace()), monitor);
  }

  read(): Promise<NodeNetworkState> {
    return callKernel(async () => {
      const [links, addresses, routes] = await Promise.all([
        this.#node.links(),
        this.#node.addresses(),
        this.#node.routes({ table: MAIN_TABLE }),
      ]);
      const addressed = new Set(addresses.filter(reachesBeyondLink).map(({ linkIndex }) => linkIndex));
      this.#links.clear();
      for (const link of links) if (addressed.has(link.index)) this.#links.set(link.index, linkState(link));
      return {
        links: links.toSorted((a, b) => a.index - b.index),
        addresses: addresses.flatMap(linkAddress),
        routes: routes.flatMap(networkRoute),
      };
    });
  }

  async watch(listener: NodeNetworkListener, targets: readonly Address[] = []): Promise<() => void> {
    const heard = (event: MonitorEvent) => {
      if (this.#isOfNode(event, targets)) listener.changed();
    };
    const ended = (failure: NetlinkError) => listener.ended(failureOfNetlink(failure));
    const subscription = await callKernel(() => this.#monitor.subscribe({ onEvent: heard, onFailure: ended }));
    return () => subscription.close();
  }

  announce({ index, name }: NetworkLink, address: Address): Promise<void> {
    return callKernel(async () => {
      const router = address.family === 6 && (await this.#forwards(name));
      await this.#node.announceAddress({ index, address: formatAddress(address), router });
    });
  }

  close(): Promise<void> {
    return this.#node.close();
  }

  /** Forwarding in the units of the kernel's own advertisements. */
  async #forwards(name: string): Promise<boolean> {
    const [forwarding] = await this.#node.readSysctls([['net', 'ipv6', 'conf', name, 'forwarding']]);
    return forwarding?.ok === true && forwarding.value !== '0';
  }

  /** Whether the node's reachability may have changed. Pods' interfaces come and go, and have no relevant address. */
  #isOfNode(event: MonitorEvent, targets: readonly Address[]): boolean {
    switch (event.object) {
      case 'overrun':
        return true;
      case 'address':
        return reachesBeyondLink(event.value);
      case 'link': {
        const known = this.#links.get(event.value.index);
        return known !== undefined && (event.deleted || known !== linkState(event.value));
      }
      case 'route':
        return event.value.table === MAIN_TABLE && isRelevantRoute(event.value, targets);
      case 'neighbour':
      case 'fdb':
        return false;
    }
  }
}

/** Podwire's own routes, possibly thousands, cost one comparison each. */
function isRelevantRoute({ destination: text, protocol }: Route, targets: readonly Address[]): boolean {
  if (DEFAULTS.includes(text)) return true;
  if (targets.length === 0 || protocol === ROUTE_PROTOCOL) return false;
  const destination = parsePrefix(text);
  return destination.ok && targets.some((target) => prefixContains(destination.prefix, target));
}

const DEFAULTS = ['0.0.0.0/0', '::/0'];

/** The attributes of a link that affect the node's reachability. */
function linkState({ name, up, mac }: Link): string {
  return `${name} ${up ? 'up' : 'down'} ${mac}`;
}

/** Every pod's interface has a link-local address. */
function reachesBeyondLink({ scope }: KernelAddress): boolean {
  return scope !== 'link';
}

function linkAddress({ family, linkIndex, address: text, scope, flags }: KernelAddress): LinkAddress[] {
  const parts = splitCidr(text);
  if (!parts) return [];
  const unusableFlags = IFA_F_DADFAILED | IFA_F_TENTATIVE | (family === 6 ? IFA_F_TEMPORARY : 0);
  const isDeprecated = (flags & IFA_F_DEPRECATED) !== 0;
  const lifetime = isDeprecated ? 'deprecated' : (flags & IFA_F_PERMANENT) === 0 ? 'dynamic' : 'permanent';
  return [{ linkIndex, ...parts, isUsable: scope === 'global' && (flags & unusableFlags) === 0, lifetime }];
}

function networkRoute({ destination: text, gateway, outputIndex, source, metric, routeType }: Route): NetworkRoute[] {
  const destination = parsePrefix(text);
  if (!destination.ok || outputIndex === null || routeType !== 'unicast') return [];
  const preferred = source === null ? undefined : parseAddress(source);
  const isOnLink = gateway === null;
  return [{ destination: destination.prefix, linkIndex: outputIndex, isOnLink, source: preferred, metric }];
}
