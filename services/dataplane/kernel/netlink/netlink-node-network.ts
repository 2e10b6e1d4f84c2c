import {
  openNamespace,
  type Address as KernelAddress,
  type Monitor,
  type Namespace,
  type Route,
} from '@podwire/netlink';
import { parseAddress } from '@podwire/shared/net/address';
import { parsePrefix, splitCidr } from '@podwire/shared/net/prefix';

import type { LinkAddress, NetworkRoute, NodeNetwork, NodeNetworkState } from '../node-network.js';
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
  readonly #monitors = new Set<Monitor>();

  private constructor(node: Namespace) {
    this.#node = node;
  }

  /** @throws Failure KERNEL_REFUSED when no netlink socket can be opened */
  static async open(): Promise<NetlinkNodeNetwork> {
    return new NetlinkNodeNetwork(await asking(() => openNamespace()));
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
    const monitor = await asking(() => this.#node.monitor({ groups: ['addresses'] }));
    this.#monitors.add(monitor);
    void follow(monitor, listener);
    return () => {
      this.#monitors.delete(monitor);
      monitor.close();
    };
  }

  async close(): Promise<void> {
    for (const monitor of this.#monitors) monitor.close();
    this.#monitors.clear();
    await this.#node.close();
  }
}

/** A subscription that the kernel ends is none any more; its caller reads now and then anyway. */
async function follow(monitor: Monitor, listener: () => void): Promise<void> {
  const events = monitor[Symbol.asyncIterator]();
  try {
    while ((await events.next()).done !== true) listener();
  } catch {
    listener();
  }
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
