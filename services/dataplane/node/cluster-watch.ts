import { WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { exponentialBackoff, WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, IpamFollower, IpamView } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import type { ClusterEvents, Connection } from './events.js';
import { WATCHED_KINDS, WatchedCluster } from './watched-cluster.js';

export interface ClusterWatchOptions {
  /** Name of this node. */
  readonly self: string;
  readonly ipam: Pick<Peer, 'stream' | 'description'>;
  /** Called in this order. The caller stops them after the cluster watch. */
  readonly followers: readonly IpamFollower[];
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Idle timeout of a stream, in milliseconds; IPAM sends a bookmark every 30 s. Default: 120,000. */
  readonly idleTimeoutMs?: number;
  /** Time until a missing first message is reported, in milliseconds. Default: 10,000. */
  readonly slowStartMs?: number;
}

const BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 15_000 };

const { watch: WATCH } = WatchServiceService;

/**
 * Keeps a view of the cluster from IPAM's watch, and passes it to followers. While IPAM is unreachable, the last view stays and
 * followers are not called. Afterwards IPAM sends the missed changes or a snapshot.
 */
export class ClusterWatch {
  readonly #options: Required<ClusterWatchOptions>;
  readonly #watched: WatchedCluster;
  readonly #queue: WorkQueue<'watch'>;
  readonly #unobserve: () => void;
  #connection: Connection = 'connecting';

  constructor(options: ClusterWatchOptions) {
    this.#options = { idleTimeoutMs: 120_000, slowStartMs: 10_000, ...options };
    const { events, clock, random } = this.#options;
    const retryInMs = exponentialBackoff(BACKOFF, random);
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        await this.#follow(signal);
        return { inMs: retryInMs(0) };
      },
      onFailure: (error) => this.#lost(error),
      retryInMs,
      clock,
    });
    this.#watched = new WatchedCluster((object, failure) => events.objectSkipped(object, failure));
    this.#unobserve = events.observe(() => this.#connection === 'connected');
  }

  /** Starts the watch; call once. */
  start(): void {
    this.#queue.request('watch');
  }

  /** View; undefined until the first complete snapshot. */
  get view(): IpamView | undefined {
    const { cluster, isDatastoreLocked } = this.#watched;
    return cluster && { self: this.#options.self, cluster, isDatastoreLocked };
  }

  get connection(): Connection {
    return this.#connection;
  }

  /** Conditions of the watch. */
  conditions(): readonly Condition[] {
    const found: Condition[] = [];
    const { description } = this.#options.ipam;
    if (this.#connection !== 'connected') {
      const effect = this.#watched.cluster
        ? 'its last state of the cluster stays in use'
        : 'routes to other nodes stay unchanged';
      const message = `${description} does not answer, ${effect}; check that it runs`;
      found.push({ reason: 'IpamUnreachable', message });
    }
    const { skippedCount } = this.#watched;
    if (skippedCount > 0) {
      const message = `${description} sent ${skippedCount} invalid objects, which are skipped; see the log for their names`;
      found.push({ reason: 'ObjectsSkipped', message });
    }
    return found;
  }

  /** Ends the calls to followers. Idempotent. */
  async stop(): Promise<void> {
    this.#unobserve();
    await this.#queue.stop();
  }

  /** Runs one stream. @throws Failure that ended it before there was any progress */
  async #follow(stopping: AbortSignal): Promise<void> {
    const { ipam } = this.#options;
    const idleTimeout = new IdleTimeout({ ...this.#options, onSlowStart: () => this.#slowStart() });
    const signal = AbortSignal.any([stopping, idleTimeout.expired]);
    this.#watched.beginStream();
    const { resumeToken } = this.#watched;
    let hasProgressed = false;
    try {
      const request = { kinds: [...WATCHED_KINDS], resumeToken };
      for await (const response of ipam.stream(WATCH, request, signal)) {
        idleTimeout.restart();
        const change = this.#watched.apply(response);
        this.#connected();
        if (response.resumeToken !== '') hasProgressed = true;
        if (change && !stopping.aborted) this.#notify(change);
      }
      throw new Failure('UNREACHABLE', `${ipam.description}: the watch ended`);
    } catch (error) {
      // The stream itself only reports its cancellation.
      const failure = idleTimeout.expired.aborted ? failureOfSignal(idleTimeout.expired) : error;
      if (!hasProgressed) throw failure;
      if (!stopping.aborted) this.#lost(failure);
    } finally {
      idleTimeout.stop();
    }
  }

  #notify(change: ClusterChange): void {
    const { view } = this;
    if (!view) return;
    const { followers, events } = this.#options;
    if (change.blocks === 'all') events.snapshot(this.#size());
    for (const follower of followers) {
      try {
        follower.follow(view, change);
      } catch (error) {
        events.followerFailed(error);
      }
    }
  }

  #connected(): void {
    if (this.#connection === 'connected') return;
    this.#connection = 'connected';
    this.#options.events.connected(this.#options.ipam.description);
  }

  #slowStart(): void {
    if (this.#connection !== 'connecting') return;
    this.#connection = 'lost';
    this.#options.events.connectionSlow(this.#options.ipam.description);
  }

  #lost(error: unknown): void {
    const { events, ipam } = this.#options;
    if (this.#connection === 'lost') events.stillLost(ipam.description, error);
    else events.lost(ipam.description, error);
    this.#connection = 'lost';
  }

  #size() {
    const { cluster, skippedCount } = this.#watched;
    return {
      nodes: cluster?.nodes.size ?? 0,
      pools: cluster?.pools.size ?? 0,
      blocks: cluster?.blocks.size ?? 0,
      skipped: skippedCount,
    };
  }
}

interface IdleTimeoutOptions {
  readonly clock: Clock;
  /** Idle timeout of a stream, in milliseconds. */
  readonly idleTimeoutMs: number;
  /** Time until a missing first message is reported, in milliseconds; less than the idle timeout. */
  readonly slowStartMs: number;
  /** Called once when the first message takes that long. */
  readonly onSlowStart: () => void;
}

/** Expires when a stream is idle: a connection whose peer vanished reports no error. */
export class IdleTimeout {
  readonly #options: IdleTimeoutOptions;
  readonly #expired = new AbortController();
  readonly #stopped = new AbortController();
  #receivedAtMs: number | undefined;

  /** Starts the timers. The creator stops them. */
  constructor(options: IdleTimeoutOptions) {
    this.#options = options;
    void this.#run();
  }

  /** Fires at the timeout. */
  get expired(): AbortSignal {
    return this.#expired.signal;
  }

  /** Restarts the idle timeout after a message. */
  restart(): void {
    this.#receivedAtMs = this.#options.clock.monotonicMs();
  }

  /** Stops the timers at the end of the stream. Idempotent. */
  stop(): void {
    this.#stopped.abort();
  }

  async #run(): Promise<void> {
    const { clock, idleTimeoutMs, slowStartMs, onSlowStart: onAwaited } = this.#options;
    const { signal } = this.#stopped;
    const startedAtMs = clock.monotonicMs();
    if ((await clock.sleep(slowStartMs, signal)) === 'aborted') return;
    if (this.#receivedAtMs === undefined) onAwaited();
    for (;;) {
      const remainingMs = (this.#receivedAtMs ?? startedAtMs) + idleTimeoutMs - clock.monotonicMs();
      if (remainingMs <= 0) break;
      if ((await clock.sleep(remainingMs, signal)) === 'aborted') return;
    }
    this.#expired.abort(new Failure('UNREACHABLE', `no message for ${idleTimeoutMs} ms (idle timeout)`));
  }
}
