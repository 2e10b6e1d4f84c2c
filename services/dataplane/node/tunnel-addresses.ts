import { BlockServiceService, type ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { NodeServiceService, TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { prefixContains } from '@podwire/shared/net/prefix';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { CallLimits, Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type {
  BorrowedAddress,
  ClusterChange,
  ClusterNode,
  IpamCluster,
  IpamFollower,
  IpamPool,
  IpamView,
} from '../cluster/cluster.js';
import type { ClusterEvents } from './events.js';

interface TunnelAddressesOptions {
  readonly ipam: Pick<Peer, 'call'>;
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

const CALL_TIMEOUT_MS = 10_000;
const PAGE_SIZE = 1000;

/** Polling interval, while the last pool of a tunnel drains, for whether this node still uses it; in milliseconds. */
const VACANCY_CHECK_INTERVAL_MS = 15_000;

const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/**
 * Requests the tunnel addresses that pools require, and releases all further ones. Tunnel kinds are independent: a
 * failure of one does not affect another.
 */
export class TunnelAddresses implements IpamFollower {
  readonly #options: TunnelAddressesOptions;
  readonly #queue: WorkQueue<PoolTunnelKind>;
  /**
   * IPAM's answers since the start: a node's record alone does not prove that its address is allocated. An address is requested
   * again only when the pools change, or when the node's record has another address.
   */
  readonly #allocations = new Map<PoolTunnelKind, Allocation>();
  #view: IpamView | undefined;

  constructor(options: TunnelAddressesOptions) {
    this.#options = options;
    const { events, clock, random } = options;
    this.#queue = new WorkQueue({
      reconcile: (kind, signal) => this.#reconcile(kind, signal),
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error, retryInMs, kind) => events.retried(TUNNELS[kind].task, error, retryInMs),
      clock,
    });
  }

  follow(view: IpamView, { hasOtherChanges }: ClusterChange): void {
    this.#view = view;
    if (!hasOtherChanges) return;
    for (const kind of TUNNEL_KINDS) if (this.#isActionDue(kind, view)) this.#queue.request(kind);
  }

  stop(): Promise<void> {
    return this.#queue.stop();
  }

  #isActionDue(kind: PoolTunnelKind, view: IpamView): boolean {
    const action = addressAction(kind, view);
    if (action === 'nothing') return false;
    if (action === 'release' || action === 'release-when-vacant') return true;
    const allocation = this.#allocations.get(kind);
    if (!allocation || allocation.address !== currentAddress(kind, view)) return true;
    return action === 'allocate' && allocation.pools !== view.cluster.pools;
  }

  async #reconcile(kind: PoolTunnelKind, signal: AbortSignal): Promise<NextRun | undefined> {
    const view = this.#view;
    if (!view || !this.#isActionDue(kind, view)) return undefined;
    const action = addressAction(kind, view);
    if (action === 'release-when-vacant' && !(await this.#isVacant(kind, view, signal))) {
      // IPAM does not notify of the release of a pod's address.
      return { inMs: VACANCY_CHECK_INTERVAL_MS };
    }
    if (action === 'release' || action === 'release-when-vacant') await this.#release(kind, view, signal);
    else await this.#allocate(kind, view, signal);
    return undefined;
  }

  async #allocate(kind: PoolTunnelKind, { self, cluster }: IpamView, signal: AbortSignal): Promise<void> {
    const { ipam, events } = this.#options;
    const request = { nodeName: self, kind };
    const method = NodeServiceService.allocateTunnelAddress;
    try {
      const { address, alreadyAllocated } = await ipam.call(method, request, this.#limits(signal));
      this.#allocations.set(kind, { address: address.replace(/\/.*$/, ''), pools: cluster.pools });
      if (!alreadyAllocated) events.tunnelAllocated(TUNNELS[kind].label, address);
    } catch (error) {
      // The pools changed meanwhile. The view with that change causes another request.
      if (error instanceof Failure && error.code === 'NO_POOL') return;
      throw error;
    }
  }

  async #release(kind: PoolTunnelKind, { self }: IpamView, signal: AbortSignal): Promise<void> {
    const { ipam, events } = this.#options;
    this.#allocations.delete(kind);
    const request = { nodeName: self, kind };
    const { addresses } = await ipam.call(NodeServiceService.releaseTunnelAddress, request, this.#limits(signal));
    if (addresses.length > 0) events.tunnelReleased(TUNNELS[kind].label, addresses);
  }

  /** Whether this node uses no address of the pools with the encapsulation, including borrowed ones, except the tunnel's own. */
  async #isVacant(kind: PoolTunnelKind, view: IpamView, signal: AbortSignal): Promise<boolean> {
    const { self, cluster } = view;
    const own = currentAddress(kind, view);
    const names = requiringPools(kind, cluster).map(({ name }) => name);
    for (const poolName of names) {
      for (let pageToken: string | undefined = ''; pageToken !== undefined;) {
        const request = { pageSize: PAGE_SIZE, pageToken, poolName, nodeName: self };
        const page: ListBlocksResponse = await this.#options.ipam.call(
          BlockServiceService.listBlocks,
          request,
          this.#limits(signal),
        );
        if (page.blocks.some(({ allocations }) => allocations.some(({ address }) => address !== own))) return false;
        pageToken = page.nextPageToken === '' ? undefined : page.nextPageToken;
      }
    }
    const isOtherOwn = ({ nodeName, address }: BorrowedAddress) => nodeName === self && formatAddress(address) !== own;
    return ![...cluster.blocks.values()].some(
      ({ poolName, borrowed }) => poolName !== undefined && names.includes(poolName) && borrowed.some(isOtherOwn),
    );
  }

  #limits(signal: AbortSignal): CallLimits {
    return { deadlineMs: this.#options.clock.nowMs() + CALL_TIMEOUT_MS, signal };
  }
}

interface Allocation {
  /** Address without length. */
  readonly address: string;
  /** The pools at the time of the call. */
  readonly pools: IpamView['cluster']['pools'];
}

function currentAddress(kind: PoolTunnelKind, { self, cluster }: IpamView): string | undefined {
  const node = cluster.nodes.get(self);
  const address = node && TUNNELS[kind].addressOf(node);
  return address && formatAddress(address);
}

/** The kinds of tunnels that pools require. */
const TUNNEL_KINDS = [
  TunnelKind.TUNNEL_KIND_IPIP,
  TunnelKind.TUNNEL_KIND_VXLAN_IPV4,
  TunnelKind.TUNNEL_KIND_VXLAN_IPV6,
] as const;

type PoolTunnelKind = (typeof TUNNEL_KINDS)[number];

interface TunnelDescription {
  readonly family: Family;
  readonly encapsulation: 'ipip' | 'vxlan';
  readonly addressOf: (node: ClusterNode) => Address | undefined;
  readonly label: string;
  readonly task: string;
}

const TUNNELS: Readonly<Record<PoolTunnelKind, TunnelDescription>> = {
  [TunnelKind.TUNNEL_KIND_IPIP]: {
    family: 4,
    encapsulation: 'ipip',
    addressOf: ({ ipip }) => ipip,
    label: 'IPIP',
    task: 'allocate-ipip',
  },
  [TunnelKind.TUNNEL_KIND_VXLAN_IPV4]: {
    family: 4,
    encapsulation: 'vxlan',
    addressOf: ({ vxlanIpv4 }) => vxlanIpv4?.address,
    label: 'IPv4 VXLAN',
    task: 'allocate-vxlan-ipv4',
  },
  [TunnelKind.TUNNEL_KIND_VXLAN_IPV6]: {
    family: 6,
    encapsulation: 'vxlan',
    addressOf: ({ vxlanIpv6 }) => vxlanIpv6?.address,
    label: 'IPv6 VXLAN',
    task: 'allocate-vxlan-ipv6',
  },
};

/**
 * Action for a tunnel's address. `confirm`: the node's record has an address in such a pool, which IPAM must confirm once.
 * `release-when-vacant`: its pool drains, so release it once this node has no other address of pools with the encapsulation.
 */
type AddressAction = 'allocate' | 'confirm' | 'release' | 'release-when-vacant' | 'nothing';

/**
 * The action for this node's end of a kind of tunnel. A pool that assigns no new addresses (disabled or draining) still has pods
 * whose packets need the tunnel. So an address is released only once no pool has the encapsulation, or when its pool drains and
 * this node has no pod that needs the tunnel.
 */
function addressAction(kind: PoolTunnelKind, { self, cluster }: IpamView): AddressAction {
  const { family, addressOf } = TUNNELS[kind];
  const node = cluster.nodes.get(self);
  if (!node) return 'nothing';
  const address = addressOf(node);
  const requiring = requiringPools(kind, cluster);
  const assigning = requiring.filter(({ assignsTunnelAddresses }) => assignsTunnelAddresses);
  if (requiring.length === 0) return address ? 'release' : 'nothing';
  const isReachable = (family === 4 ? node.ipv4 : node.ipv6) !== undefined;
  const isLastDraining =
    assigning.length === 0 &&
    requiring.some(({ cidr, isDraining }) => isDraining && address && prefixContains(cidr, address));
  if (isLastDraining) return 'release-when-vacant';
  if (assigning.length === 0 || !isReachable) return 'nothing';
  return address && assigning.some(({ cidr }) => prefixContains(cidr, address)) ? 'confirm' : 'allocate';
}

/** The pools whose pods need the tunnels of a kind, whether or not they assign addresses. */
function requiringPools(kind: PoolTunnelKind, { pools }: IpamCluster): readonly IpamPool[] {
  const { family, encapsulation } = TUNNELS[kind];
  return [...pools.values()].filter((pool) => pool.cidr.family === family && isEncapsulated(pool, encapsulation));
}

function isEncapsulated({ encapsulation, loadBalancerOnly }: IpamPool, wanted: 'ipip' | 'vxlan'): boolean {
  return !loadBalancerOnly && (encapsulation === wanted || encapsulation === `${wanted}-cross-subnet`);
}
