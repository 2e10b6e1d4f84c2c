import {
  openNamespace,
  type Address as KernelAddress,
  type MonitorEvent,
  type Namespace,
  type Route,
} from '@podwire/netlink';
import { parseAddress } from '@podwire/shared/net/address';
import { parsePrefix, splitCidr } from '@podwire/shared/net/prefix';

import type { LinkAddress, NetworkRoute, NodeNetwork, NodeNetworkState } from '../node-network.js';
import type { MonitorSubscription, NodeMonitor } from './node-monitor.js';
import { MAIN_TABLE } from './observe.js';
import { asking } from './refusal.js';

/** IFA_F_* of linux/if_addr.h; the first one means something else with IPv4. */
const IFA_F_TEMPORARY = 0x01;
const IFA_F_DADFAILED = 0x08;
const IFA_F_DEPRECATED = 0x20;
const IFA_F_TENTATIVE = 0x40;

/** The real node, through rtnetlink, in the network namespace of this process. */
export class NetlinkNodeNetwork implements NodeNetwork {
  readonly #node: Namespace;
  readonly #monitor: NodeMonitor;
  readonly #watches = new Set<MonitorSubscription>();

  private constructor(node: Namespace, monitor: NodeMonitor) {
    this.#node = node;
    this.#monitor = monitor;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(monitor: NodeMonitor): Promise<NetlinkNodeNetwork> {
    return new NetlinkNodeNetwork(await asking(() => openNamespace()), monitor);
  }

  read(): Promise<NodeNetworkState> {
    return asking(async () => {
      const [links, addresses, routes] = await Promise.all([
        this.#node.links(),
        this.#node.addresses(),
        this.#node.routes({ table: MAIN_TABLE }),
      ]);
      return {
        links: links.toSorted((a, b) => a.index - b.index),
        addresses: addresses.flatMap(linkAddress),
        routes: routes.flatMap(networkRoute),
      };
    });
  }

  async watch(listener: () => void): Promise<() => void> {
    // A subscription that the kernel ends is none any more; its caller reads now and then anyway.
    const heard = (event: MonitorEvent) => {
      if (isOfNode(event)) listener();
    };
    const subscription = await asking(() => this.#monitor.subscribe({ heard, ended: listener }));
    this.#watches.add(subscription);
    return () => {
      this.#watches.delete(subscription);
      subscription.close();
    };
  }

  async close(): Promise<void> {
    for (const watch of this.#watches) watch.close();
    this.#watches.clear();
    await this.#node.close();
  }
}

/** Whether the node may have another address than before. Every pod's interface has a link-local one, which is none of it. */
function isOfNode(event: MonitorEvent): boolean {
  return event.object === 'overrun' || (event.object === 'address' && event.value.scope !== 'link');
}

function linkAddress({ family, linkIndex, address: text, scope, flags }: KernelAddress): LinkAddress[] {
  const parts = splitCidr(text);
  if (!parts) return [];
  const passing = IFA_F_DADFAILED | IFA_F_DEPRECATED | IFA_F_TENTATIVE | (family === 6 ? IFA_F_TEMPORARY : 0);
  return [{ linkIndex, ...parts, lasting: scope === 'global' && (flags & passing) === 0 }];
}

function networkRoute({ destination: text, outputIndex, source, metric, routeType }: Route): NetworkRoute[] {
  const destination = parsePrefix(text);
  if (!destination.ok || outputIndex === null || routeType !== 'unicast') return [];
  const preferred = source === null ? undefined : parseAddress(source);
  return [{ destination: destination.prefix, linkIndex: outputIndex, source: preferred, metric }];
}
