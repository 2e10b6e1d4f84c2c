import { WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, KnownFollower, KnownView } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import type { ClusterEvents, Connection } from './events.js';
import { WATCHED_KINDS, WatchedCluster } from './watched-cluster.js';

export interface IpamClusterOptions {
  /** Name of this node. */
  readonly self: string;
  readonly ipam: Pick<Peer, 'stream' | 'description'>;
  /** Called in this order. The caller owns them, and stops them after the cluster watch. */
  readonly followers: readonly KnownFollower[];
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Idle timeout of a stream, in milliseconds; IPAM sends a bookmark every 30 s. Default: 120,000. */
  readonly silenceMs?: number;
  /** Time without a first message before that is reported, in milliseconds. Default: 10,000. */
  readonly patienceMs?: number;
}

const BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 15_000 };

const { watch: WATCH } = WatchServiceService;

/**
 * Keeps a view of the cluster from IPAM's watch, and passes it to followers. While IPAM is unreachable the last view stands, and
 * followers are not called; afterwards the missed changes or a snapshot follow.
 */
export class IpamCluster {
  readonly #options: Required<IpamClusterOptions>;
  readonly #watched: WatchedCluster;
  readonly #stop = new AbortController();
  readonly #unobserve: () => void;
  #connection: Connection = 'connecting';
  #running: Promise<void> | undefined;

  constructor(options: IpamClusterOptions) {
    this.#options = { silenceMs: 120_000, patienceMs: 10_000, ...options };
    const { events } = this.#options;
    this.#watched = new WatchedCluster((object, failure) => events.objectSkipped(object, failure));
    this.#unobserve = events.observe(() => ({ connected: this.#connection === 'connected', ...this.#size() }));
  }

  /** Starts the watch; call once. */
  start(): void {
    this.#running ??= this.#run();
  }

  /** Undefined until the first complete snapshot. */
  get view(): KnownView | undefined {
    const { cluster } = this.#watched;
    return cluster && { self: this.#options.self, cluster };
  }

  get connection(): Connection {
    return this.#connection;
  }

  /** Conditions of the watch. */
  conditions(): readonly Condition[] {
    const found: Condition[] = [];
    const { description } = this.#options.ipam;
    if (this.#connection !== 'connected') {
      const known = this.#watched.cluster
        ? 'what it last told of the cluster stands'
        : 'routes to other nodes stay as they are';
      found.push({ reason: 'IpamUnreachable', message: `${description} does not answer; ${known}: see that it runs` });
    }
    const { skippedCount } = this.#watched;
    if (skippedCount > 0) {
      const message = `${skippedCount} objects of ${description} make no sense and are left out: see the log for their names`;
      found.push({ reason: 'ObjectsSkipped', message });
    }
    return found;
  }

  /** Ends the calls to followers. Idempotent. */
  async stop(): Promise<void> {
    this.#stop.abort();
    this.#unobserve();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    const { clock, random } = this.#options;
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        await this.#follow(() => (attempt = 0));
      } catch (error) {
        if (this.#isStopped()) return;
        this.#lost(error);
      }
      if (this.#isStopped()) return;
      await clock.sleep(backoffMs(attempt, BACKOFF, random()), signal);
    }
  }

  /** Runs one stream. @throws Failure that ended it */
  async #follow(onProgress: () => void): Promise<void> {
    const { ipam } = this.#options;
    const silence = new Silence({ ...this.#options, onAwaited: () => this.#awaited() });
    const signal = AbortSignal.any([this.#stop.signal, silence.broken]);
    this.#watched.beginStream();
    const { resumeToken } = this.#watched;
    try {
      const request = { kinds: [...WATCHED_KINDS], nodeName: '', poolName: '', resumeToken };
      for await (const response of ipam.stream(WATCH, request, signal)) {
        silence.heard();
        const change = this.#watched.apply(response);
        this.#connected();
        if (response.resumeToken !== '') onProgress();
        if (change && !this.#isStopped()) this.#tell(change);
      }
    } catch (error) {
      // The stream itself only reports its cancellation.
      throw silence.broken.aborted ? failureOfSignal(silence.broken) : error;
    } finally {
      silence.end();
    }
    throw new Failure('UNREACHABLE', `${ipam.description}: the watch ended`);
  }

  #tell(change: ClusterChange): void {
    const { view } = this;
    if (!view) return;
    const { followers, events } = this.#options;
    if (change.blocks === 'all') events.snapshot(this.#size());
    else events.changed();
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

  #awaited(): void {
    if (this.#connection !== 'connecting') return;
    this.#connection = 'lost';
    this.#options.events.awaited(this.#options.ipam.description);
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

  #isStopped(): boolean {
    return this.#stop.signal.aborted;
  }
}

interface SilenceOptions {
  readonly clock: Clock;
  /** Idle timeout of a stream, in milliseconds. */
  readonly silenceMs: number;
  /** Time without a first message before that is reported, in milliseconds; less than the idle timeout. */
  readonly patienceMs: number;
  /** Called once when the first message takes that long. */
  readonly onAwaited: () => void;
}

/** Cancels an idle stream: a connection whose peer vanished reports no error. */
export class Silence {
  readonly #options: SilenceOptions;
  readonly #broken = new AbortController();
  readonly #ended = new AbortController();
  #heardAtMs: number | undefined;

  /** Starts with the stream. The creator ends it. */
  constructor(options: SilenceOptions) {
    this.#options = options;
    void this.#run();
  }

  /** Fires at the idle timeout. */
  get broken(): AbortSignal {
    return this.#broken.signal;
  }

  /** Restarts the idle timeout after a message. */
  heard(): void {
    this.#heardAtMs = this.#options.clock.nowMs();
  }

  /** Stops the timers at the end of the stream. Idempotent. */
  end(): void {
    this.#ended.abort();
  }

  async #run(): Promise<void> {
    const { clock, silenceMs, patienceMs, onAwaited } = this.#options;
    const { signal } = this.#ended;
    const begunAtMs = clock.nowMs();
    if ((await clock.sleep(patienceMs, signal)) === 'aborted') return;
    if (this.#heardAtMs === undefined) onAwaited();
    for (;;) {
      const leftMs = (this.#heardAtMs ?? begunAtMs) + silenceMs - clock.nowMs();
      if (leftMs <= 0) break;
      if ((await clock.sleep(leftMs, signal)) === 'aborted') return;
    }
    this.#broken.abort(new Failure('UNREACHABLE', `nothing was heard for ${silenceMs} ms`));
  }
}
