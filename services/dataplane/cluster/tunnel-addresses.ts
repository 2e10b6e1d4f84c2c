import { NodeServiceService } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange } from '../routing/cluster.js';
import type { ClusterEvents } from './cluster-events.js';
import type { KnownFollower, KnownView } from './known-cluster.js';
import { Repeated } from './repeated.js';
import { TUNNEL_KINDS, tunnelNeed, TUNNELS, type PoolTunnelKind } from './tunnel-need.js';

export interface TunnelAddressesOptions {
  readonly ipam: Pick<Peer, 'call'>;
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

const CALL_TIMEOUT_MS = 10_000;
const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/**
 * Sees to it that this node's tunnels have the addresses that pools ask for, and no others. Each kind by itself: one that cannot be
 * had keeps nothing from the others.
 */
export class TunnelAddresses implements KnownFollower {
  readonly #options: TunnelAddressesOptions;
  readonly #work: ReadonlyMap<PoolTunnelKind, Repeated>;
  /**
   * What IPAM answered since the start: a node's record alone does not prove that its address is allocated. And IPAM has the last
   * word: what it gave is not asked for again until the pools change, even if it does not look right here.
   */
  readonly #answers = new Map<PoolTunnelKind, Answer>();
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
    await Promise.all([...this.#work.values()].map((work) => work.stop()));
  }

  #isToDo(kind: PoolTunnelKind, view: KnownView): boolean {
    const need = tunnelNeed(kind, view);
    if (need === 'nothing' || need === 'release') return need === 'release';
    const answer = this.#answers.get(kind);
    if (!answer || answer.address !== currentAddress(kind, view)) return true;
    return need === 'allocate' && answer.pools !== view.cluster.pools;
  }

  async #settle(kind: PoolTunnelKind, signal: AbortSignal): Promise<void> {
    const view = this.#view;
    if (!view || !this.#isToDo(kind, view)) return;
    const { ipam, events, clock } = this.#options;
    const limits = { deadlineMs: clock.nowMs() + CALL_TIMEOUT_MS, signal };
    const request = { nodeName: view.self, kind };
    const { word } = TUNNELS[kind];
    if (tunnelNeed(kind, view) === 'release') {
      this.#answers.delete(kind);
      const { addresses } = await ipam.call(NodeServiceService.releaseTunnelAddress, request, limits);
      if (addresses.length > 0) events.tunnelReleased(word, addresses);
      return;
    }
    try {
      const { address, alreadyAllocated } = await ipam.call(NodeServiceService.allocateTunnelAddress, request, limits);
      this.#answers.set(kind, { address: address.replace(/\/.*$/, ''), pools: view.cluster.pools });
      if (!alreadyAllocated) events.tunnelAllocated(word, address);
    } catch (error) {
      // The pools changed meanwhile: the view that tells so asks again.
      if (error instanceof Failure && error.code === 'NO_POOL') return;
      throw error;
    }
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
