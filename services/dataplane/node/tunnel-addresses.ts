import { BlockServiceService, type ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { NodeServiceService, TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { prefixContains } from '@podwire/shared/net/prefix';
import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import type { CallLimits, Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type {
  BorrowedAddress,
  ClusterChange,
  ClusterNode,
  KnownCluster,
  KnownFollower,
  KnownPool,
  KnownView,
} from '../cluster/cluster.js';
import type { ClusterEvents } from './events.js';
import { Repeated } from './retrying-task.js';

interface TunnelAddressesOptions {
  readonly ipam: Pick<Peer, 'call'>;
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

const CALL_TIMEOUT_MS = 10_000;
const PAGE_SIZE = 1000;

/** Polling interval for a draining tunnel pool, whether this node's pods have left it, in milliseconds. */
const YIELD_INTERVAL_MS = 15_000;

const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/**
 * Requests the tunnel addresses that pools require, and releases all others. Tunnel kinds are independent: a failure of one does
 * not affect the rest.
 */
export class TunnelAddresses implements KnownFollower {
  readonly #options: TunnelAddressesOptions;
  readonly #work: ReadonlyMap<PoolTunnelKind, Repeated>;
  /**
   * IPAM's answers since the start: a node's record alone does not prove that its address is allocated. IPAM's answer is final:
   * it is not requested again until the pools change, even if it looks wrong here.
   */
  readonly #answers = new Map<PoolTunnelKind, Answer>();
  /** For the next check, when a tunnel's address may be released. */
  readonly #waits = new Map<PoolTunnelKind, Promise<void>>();
  readonly #stopping = new AbortController();
  #view: KnownView | undefined;

  constructor(options: TunnelAddressesOptions) {
    this.#options = options;
    const { events, clock, random } = options;
    const work = (kind: PoolTunnelKind) =>
      new Repeated({
        task: (signal) => this.#settle(kind, signal),
        failed: (error, retryInMs) =>
          events.retried(`settle the address of the ${TUNNELS[kind].word} tunnel`, error, retryInMs),
        backoff: BACKOFF,
        clock,
        random,
      });
    this.#work = new Map(TUNNEL_KINDS.map((kind) => [kind, work(kind)]));
  }

  follow(view: KnownView, { others }: ClusterChange): void {
    this.#view = view;
    if (!others) return;
    for (const [kind, work] of this.#work) if (this.#isToDo(kind, view)) work.ask();
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await Promise.all([...this.#work.values()].map((work) => work.stop()));
    await Promise.all(this.#waits.values());
  }

  #isToDo(kind: PoolTunnelKind, view: KnownView): boolean {
    const need = tunnelNeed(kind, view);
    if (need === 'nothing') return false;
    if (need === 'release' || need === 'yield') return true;
    const answer = this.#answers.get(kind);
    if (!answer || answer.address !== currentAddress(kind, view)) return true;
    return need === 'allocate' && answer.pools !== view.cluster.pools;
  }

  async #settle(kind: PoolTunnelKind, signal: AbortSignal): Promise<void> {
    const view = this.#view;
    if (!view || !this.#isToDo(kind, view)) return;
    const need = tunnelNeed(kind, view);
    if (need === 'release' || (need === 'yield' && (await this.#isVacant(kind, view, signal)))) {
      await this.#release({ nodeName: view.self, kind }, signal);
      return;
    }
    if (need === 'yield') {
      this.#askLater(kind);
      return;
    }
    const { ipam, events } = this.#options;
    const limits = this.#limits(signal);
    const request = { nodeName: view.self, kind };
    const { word } = TUNNELS[kind];
    try {
      const { address, alreadyAllocated } = await ipam.call(NodeServiceService.allocateTunnelAddress, request, limits);
      this.#answers.set(kind, { address: address.replace(/\/.*$/, ''), pools: view.cluster.pools });
      if (!alreadyAllocated) events.tunnelAllocated(word, address);
    } catch (error) {
      // The pools changed meanwhile: the view with the change triggers another request.
      if (error instanceof Failure && error.code === 'NO_POOL') return;
      throw error;
    }
  }

  async #release(
    request: { readonly nodeName: string; readonly kind: PoolTunnelKind },
    signal: AbortSignal,
  ): Promise<void> {
    const { ipam, events } = this.#options;
    this.#answers.delete(request.kind);
    const { addresses } = await ipam.call(NodeServiceService.releaseTunnelAddress, request, this.#limits(signal));
    if (addresses.length > 0) events.tunnelReleased(TUNNELS[request.kind].word, addresses);
  }

  /** Whether this node's only address in the pools that need the tunnel, including borrowed ones, is the tunnel's own. */
  async #isVacant(kind: PoolTunnelKind, view: KnownView, signal: AbortSignal): Promise<boolean> {
    const { self, cluster } = view;
    const own = currentAddress(kind, view);
    const names = wantingPools(kind, cluster).map(({ name }) => name);
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
    const isElsewhere = ({ nodeName, address }: BorrowedAddress) => nodeName === self && formatAddress(address) !== own;
    return ![...cluster.blocks.values()].some(
      ({ poolName, borrowed }) => poolName !== undefined && names.includes(poolName) && borrowed.some(isElsewhere),
    );
  }

  /** The release of a pod's address is not announced, so it is polled. */
  #askLater(kind: PoolTunnelKind): void {
    const { clock } = this.#options;
    if (this.#waits.has(kind)) return;
    const waited = clock.sleep(YIELD_INTERVAL_MS, this.#stopping.signal).then(() => {
      this.#waits.delete(kind);
      this.#work.get(kind)?.ask();
    });
    this.#waits.set(kind, waited);
  }

  #limits(signal: AbortSignal): CallLimits {
    return { deadlineMs: this.#options.clock.nowMs() + CALL_TIMEOUT_MS, signal };
  }
}

interface Answer {
  /** Without length. */
  readonly address: string;
  /** The pools at the time of the call. */
  readonly pools: KnownView['cluster']['pools'];
}

function currentAddress(kind: PoolTunnelKind, { self, cluster }: KnownView): string | undefined {
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

interface TunnelFacts {
  readonly family: Family;
  readonly encapsulation: 'ipip' | 'vxlan';
  readonly addressOf: (node: ClusterNode) => Address | undefined;
  readonly word: string;
}

const TUNNELS: Readonly<Record<PoolTunnelKind, TunnelFacts>> = {
  [TunnelKind.TUNNEL_KIND_IPIP]: { family: 4, encapsulation: 'ipip', addressOf: ({ ipip }) => ipip, word: 'IPIP' },
  [TunnelKind.TUNNEL_KIND_VXLAN_IPV4]: {
    family: 4,
    encapsulation: 'vxlan',
    addressOf: ({ vxlanIpv4 }) => vxlanIpv4?.address,
    word: 'IPv4 VXLAN',
  },
  [TunnelKind.TUNNEL_KIND_VXLAN_IPV6]: {
    family: 6,
    encapsulation: 'vxlan',
    addressOf: ({ vxlanIpv6 }) => vxlanIpv6?.address,
    word: 'IPv6 VXLAN',
  },
};

/**
 * Action for a tunnel's address. `confirm`: it looks right; confirm it with IPAM once. `yield`: its pool is going away; release
 * it as soon as this node has no other address of the pools with that encapsulation.
 */
type TunnelNeed = 'allocate' | 'confirm' | 'release' | 'yield' | 'nothing';

/**
 * Whether this node's end of a kind of tunnel needs an address, or has one that no pool requires. A pool without new addresses
 * (disabled, or being deleted) still has pods whose packets need the tunnel; so an address is released only once no pool has that
 * encapsulation, or when its pool drains and no pod of this node depends on the tunnel.
 */
function tunnelNeed(kind: PoolTunnelKind, { self, cluster }: KnownView): TunnelNeed {
  const { family, addressOf } = TUNNELS[kind];
  const node = cluster.nodes.get(self);
  if (!node) return 'nothing';
  const address = addressOf(node);
  const wanting = wantingPools(kind, cluster);
  const giving = wanting.filter(({ givesTunnelAddresses }) => givesTunnelAddresses);
  if (wanting.length === 0) return address ? 'release' : 'nothing';
  const isReachable = (family === 4 ? node.ipv4 : node.ipv6) !== undefined;
  const isLast =
    giving.length === 0 &&
    wanting.some(({ cidr, isDraining }) => isDraining && address && prefixContains(cidr, address));
  if (isLast) return 'yield';
  if (giving.length === 0 || !isReachable) return 'nothing';
  return address && giving.some(({ cidr }) => prefixContains(cidr, address)) ? 'confirm' : 'allocate';
}

/** The pools whose pods need the tunnels of a kind, whether or not they assign addresses. */
function wantingPools(kind: PoolTunnelKind, { pools }: KnownCluster): readonly KnownPool[] {
  const { family, encapsulation } = TUNNELS[kind];
  return [...pools.values()].filter((pool) => pool.cidr.family === family && isEncapsulated(pool, encapsulation));
}

function isEncapsulated({ encapsulation, loadBalancerOnly }: KnownPool, wanted: 'ipip' | 'vxlan'): boolean {
  return !loadBalancerOnly && (encapsulation === wanted || encapsulation === `${wanted}-cross-subnet`);
}
