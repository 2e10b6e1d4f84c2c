import { Failure } from '@podwire/shared/failure/failure';
import { exponentialBackoff, WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  encapsulationOf,
  type ClusterChange,
  type ClusterPool,
  type ClusterView,
  type Follower,
} from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { isPodInterface, TUNNEL_DEVICES } from '../routes/observed.js';
import { OVERHEAD_BYTES } from '../routes/tunnels.js';
import type { LinkSource, LinkWatch, NodeLink } from './links.js';

interface MtuEvents {
  /** The MTU of pods changed. */
  mtuDetected(detected: DetectedMtu): void;
  /** Pods use the operator's MTU, in bytes. */
  mtuSet(mtuBytes: number): void;
  /** The node's interfaces cannot be read; it is retried. */
  mtuUnknown(failure: Failure): void;
}

interface PodMtuOptions {
  readonly links: LinkSource;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly events: MtuEvents;
  /** The operator's MTU in bytes; 0: detect it. */
  readonly fixedBytes: number;
  /** The interfaces to consider: names, or prefixes with a trailing `*`. */
  readonly patterns: readonly string[];
}

/** Polling interval for the interfaces, in milliseconds. */
export const LINK_CHECK_INTERVAL_MS = 90_000;

/** Retries after the watch failed, or the links could not be read. */
const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Called with the default MTU of pods in bytes: when it is first known, and on each change. */
type MtuListener = (mtuBytes: number) => void;

/**
 * The MTU of pods that request none. It follows the node's interfaces and the pools. New pods get the current value, and listeners
 * apply a change to existing pods.
 */
export class PodMtu implements Follower {
  readonly #options: PodMtuOptions;
  readonly #listeners: MtuListener[] = [];
  readonly #queue: WorkQueue<'links'>;
  readonly #backoff: (failures: number) => number;
  #pools: readonly ClusterPool[] | undefined;
  /** Host interfaces of the pods that existed at the start and request no MTU. */
  #hostInterfaces: ReadonlySet<string> = new Set();
  /** Encapsulation overhead while the pools are unknown, in bytes; undefined before the first reading. */
  #assumedOverheadBytes: number | undefined;
  #detected: DetectedMtu | undefined;
  /** The last MTU that listeners received. */
  #reportedMtuBytes: number | undefined;
  #watch: LinkWatch | undefined;
  /** Watches in a row that ended soon, for the back-off. */
  #shortWatches = 0;
  #failure: string | undefined;
  /** Called after each reading, successful or not. */
  #onReading = (): void => undefined;

  constructor(options: PodMtuOptions) {
    this.#options = options;
    this.#backoff = exponentialBackoff(BACKOFF, options.random);
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        await this.#check(signal);
        return { inMs: LINK_CHECK_INTERVAL_MS };
      },
      retryInMs: this.#backoff,
      onFailure: (error) => {
        if (!(error instanceof Failure)) throw error;
      },
      clock: options.clock,
    });
  }

  /**
   * Reads the node's interfaces, and starts to watch them. Resolves after the first reading, successful or not.
   * @param wires - host interfaces of existing pods that request no MTU
   */
  async start(wires: readonly string[] = []): Promise<void> {
    this.#hostInterfaces = new Set(wires);
    if (this.#options.fixedBytes > 0) {
      this.#detected = { mtuBytes: this.#options.fixedBytes, interfaceName: undefined, overheadBytes: 0 };
      this.#options.events.mtuSet(this.#options.fixedBytes);
      this.#notify();
      return;
    }
    const firstReading = new Promise<void>((resolve) => (this.#onReading = resolve));
    this.#queue.request('links');
    await firstReading;
  }

  /**
   * MTU of a pod wired now, in bytes. While the pools are unknown, the encapsulation overhead is derived from existing pods, so
   * that new pods get the same MTU. Without existing pods the overhead counts as zero until the pools are known.
   */
  get mtuBytes(): number {
    return this.#detected?.mtuBytes ?? ASSUMED_MTU_BYTES;
  }

  /** Adds a listener, and calls it at once with a known MTU. It must not throw. */
  onChange(listener: MtuListener): void {
    this.#listeners.push(listener);
    if (this.#reportedMtuBytes !== undefined) listener(this.#reportedMtuBytes);
  }

  follow({ cluster }: ClusterView, change: ClusterChange): void {
    if (this.#pools && !change.hasOtherChanges) return;
    this.#pools = [...cluster.pools.values()];
    if (this.#options.fixedBytes === 0) this.#queue.request('links');
  }

  /** Why the MTU may be wrong. */
  conditions(): readonly Condition[] {
    if (this.#failure === undefined) return [];
    return [{ reason: 'MtuUnknown', message: `the node's interfaces cannot be read: ${this.#failure}` }];
  }

  async stop(): Promise<void> {
    await this.#queue.stop();
    this.#watch?.close();
  }

  /** Reads the links. @throws Failure when they cannot be read or watched */
  async #check(signal: AbortSignal): Promise<void> {
    const { links, patterns, events } = this.#options;
    try {
      this.#watch ??= await this.#open(signal);
      const before = this.#detected;
      const found = await links.links();
      const overheadBytes = this.#pools ? maxOverheadBytes(this.#pools) : this.#assumeOverheadBytes(found);
      const detected = detectMtu(found, patterns, overheadBytes);
      this.#detected = detected;
      this.#failure = undefined;
      if (!before || !isSame(before, detected)) events.mtuDetected(detected);
      if (this.#pools) this.#notify();
    } catch (error) {
      if (error instanceof Failure && error.message !== this.#failure) {
        this.#failure = error.message;
        events.mtuUnknown(error);
      }
      throw error;
    } finally {
      this.#onReading();
    }
  }

  /** The overhead that the previous process subtracted, in bytes: the network's MTU minus that of most pods. */
  #assumeOverheadBytes(links: readonly NodeLink[]): number {
    if (this.#assumedOverheadBytes === undefined) {
      const { mtuBytes } = detectMtu(links, this.#options.patterns, 0);
      this.#assumedOverheadBytes = Math.max(
        0,
        mtuBytes - (mostFrequentMtuBytes(links, this.#hostInterfaces) ?? mtuBytes),
      );
    }
    return this.#assumedOverheadBytes;
  }

  /** @returns undefined when the watch has failed already */
  async #open(signal: AbortSignal): Promise<LinkWatch | undefined> {
    const { clock, links, patterns } = this.#options;
    const openedAtMs = clock.monotonicMs();
    const ended = new AbortController();
    const watch = await links.watch({
      changed: (name) => {
        if (name === undefined || isNodeInterface(name, patterns)) this.#queue.restart('links');
      },
      ended: () => {
        ended.abort();
        this.#watch = undefined;
        const isShort = clock.monotonicMs() - openedAtMs < BACKOFF.maxMs;
        this.#shortWatches = isShort ? this.#shortWatches + 1 : 0;
        this.#queue.request('links', this.#backoff(Math.max(0, this.#shortWatches - 1)));
      },
    });
    if (signal.aborted) watch.close();
    return ended.signal.aborted || signal.aborted ? undefined : watch;
  }

  #notify(): void {
    const mtuBytes = this.mtuBytes;
    if (mtuBytes === this.#reportedMtuBytes) return;
    this.#reportedMtuBytes = mtuBytes;
    for (const listener of this.#listeners) listener(mtuBytes);
  }
}

function isSame(a: DetectedMtu, b: DetectedMtu): boolean {
  return a.mtuBytes === b.mtuBytes && a.interfaceName === b.interfaceName && a.overheadBytes === b.overheadBytes;
}

/**
 * Network MTU in bytes when no interface matches the patterns: Ethernet's. Calico assumes 1460, for one provider's network. The
 * default patterns match that provider's interfaces, so their MTU is used.
 */
const ASSUMED_MTU_BYTES = 1500;

/** Least MTU of a link for IPv4, in bytes (RFC 791); the kernel refuses less. */
const LEAST_MTU_BYTES = 68;

/** An MTU for pods, with its origin. */
export interface DetectedMtu {
  readonly mtuBytes: number;
  /** Name of the limiting interface; undefined when none is considered. */
  readonly interfaceName: string | undefined;
  /** Encapsulation overhead of the pools, in bytes. */
  readonly overheadBytes: number;
}

/**
 * The MTU of pods on this node: the smallest of the node's interfaces, minus the encapsulation overhead. Considers interfaces
 * that are up and match a pattern; never Podwire's own devices and pods' interfaces.
 * @param patterns - names, or prefixes with a trailing `*`
 * @param overheadBytes - the {@link maxOverheadBytes} of the pools
 */
export function detectMtu(links: readonly NodeLink[], patterns: readonly string[], overheadBytes: number): DetectedMtu {
  const candidates = links.filter(({ name, up }) => up && isNodeInterface(name, patterns));
  const smallest = candidates.toSorted((a, b) => a.mtuBytes - b.mtuBytes)[0];
  return {
    mtuBytes: Math.max(LEAST_MTU_BYTES, (smallest?.mtuBytes ?? ASSUMED_MTU_BYTES) - overheadBytes),
    interfaceName: smallest?.name,
    overheadBytes,
  };
}

/** The most frequent MTU of some links, in bytes; the lower of two equally frequent ones. Undefined when none of them exists. */
export function mostFrequentMtuBytes(links: readonly NodeLink[], names: ReadonlySet<string>): number | undefined {
  const counts = new Map<number, number>();
  for (const { name, mtuBytes } of links) if (names.has(name)) counts.set(mtuBytes, (counts.get(mtuBytes) ?? 0) + 1);
  return [...counts].toSorted(([a, ofA], [b, ofB]) => ofB - ofA || a - b)[0]?.[0];
}

/** Whether a link, by its name, connects the node to its network. */
export function isNodeInterface(name: string, patterns: readonly string[]): boolean {
  if (name === 'lo' || TUNNEL_DEVICES.includes(name) || isPodInterface({ name, alias: null })) return false;
  return patterns.some((pattern) => (pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern));
}

/** The largest encapsulation overhead of any pool per packet, in bytes. */
export function maxOverheadBytes(pools: readonly ClusterPool[]): number {
  return Math.max(0, ...pools.map(overheadBytesOf));
}

/** A pool's encapsulation overhead per packet, in bytes. Zero for IPv6 in IPIP: such pools have no tunnel. */
function overheadBytesOf(pool: ClusterPool): number {
  switch (encapsulationOf(pool)) {
    case 'none':
      return 0;
    case 'vxlan':
    case 'vxlan-cross-subnet':
      return OVERHEAD_BYTES.vxlan[pool.cidr.family];
    case 'ipip':
    case 'ipip-cross-subnet':
      return pool.cidr.family === 4 ? OVERHEAD_BYTES.ipip : 0;
  }
}
