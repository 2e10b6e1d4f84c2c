import { Failure } from '@podwire/shared/failure/failure';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
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
import type { LinkSource, NodeLink } from './links.js';

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

/** `watch`: a run lasts as long as the watch is open. */
type Task = 'watch' | 'read';

/** The encapsulation overhead that is subtracted. */
type Overhead =
  /** The pools are unknown, and nothing was read: to be derived from existing pods that request no MTU. */
  | { readonly from: 'existing-pods'; readonly hostInterfaces: ReadonlySet<string> }
  | { readonly from: 'first-reading' | 'pools'; readonly bytes: number };

type KnownMtu =
  | { readonly phase: 'unknown' }
  /** `provisional`: the pools are unknown; listeners are not called. */
  | { readonly phase: 'provisional' | 'final'; readonly detected: DetectedMtu };

const WATCH_ENDED = new Failure('KERNEL_REFUSED', 'the watch of the links has ended');

/**
 * The MTU of pods that request none. It follows the node's interfaces and the pools. New pods get the current value, and listeners
 * apply a change to existing pods.
 */
export class PodMtu implements Follower {
  readonly #options: PodMtuOptions;
  readonly #listeners: MtuListener[] = [];
  readonly #queue: WorkQueue<Task>;
  #overhead: Overhead = { from: 'existing-pods', hostInterfaces: new Set() };
  #mtu: KnownMtu = { phase: 'unknown' };
  /** Message of the last failure; undefined after a reading. */
  #failure: string | undefined;
  /** Called after each reading, successful or not. */
  #onReading = (): void => undefined;

  constructor(options: PodMtuOptions) {
    this.#options = options;
    this.#queue = new WorkQueue({
      reconcile: (task, signal) => this.#run(task, signal),
      retryInMs: exponentialBackoff(BACKOFF, options.random),
      resetAfterMs: BACKOFF.maxMs,
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
    const { fixedBytes, events } = this.#options;
    if (fixedBytes > 0) {
      events.mtuSet(fixedBytes);
      this.#setFinal({ mtuBytes: fixedBytes, interfaceName: undefined, overheadBytes: 0 });
      return;
    }
    this.#overhead = { from: 'existing-pods', hostInterfaces: new Set(wires) };
    const firstReading = new Promise<void>((resolve) => (this.#onReading = resolve));
    this.#queue.request('watch');
    await firstReading;
  }

  /**
   * MTU of a pod wired now, in bytes. While the pools are unknown, the encapsulation overhead is derived from existing pods, so
   * that new pods get the same MTU. Without existing pods the overhead counts as zero until the pools are known.
   */
  get mtuBytes(): number {
    return this.#mtu.phase === 'unknown' ? ASSUMED_MTU_BYTES : this.#mtu.detected.mtuBytes;
  }

  /** Adds a listener, and calls it at once with a known MTU. It must not throw. */
  onChange(listener: MtuListener): void {
    this.#listeners.push(listener);
    if (this.#mtu.phase === 'final') listener(this.mtuBytes);
  }

  follow({ cluster }: ClusterView, change: ClusterChange): void {
    if (this.#overhead.from === 'pools' && !change.hasOtherChanges) return;
    this.#overhead = { from: 'pools', bytes: maxOverheadBytes([...cluster.pools.values()]) };
    if (this.#options.fixedBytes === 0) this.#queue.request('read');
  }

  /** Why the MTU may be wrong. */
  conditions(): readonly Condition[] {
    if (this.#failure === undefined) return [];
    return [{ reason: 'MtuUnknown', message: `the node's interfaces cannot be read: ${this.#failure}` }];
  }

  stop(): Promise<void> {
    return this.#queue.stop();
  }

  async #run(task: Task, signal: AbortSignal): Promise<NextRun | undefined> {
    try {
      if (task === 'watch') return await this.#watch(signal);
      await this.#read();
      return { inMs: LINK_CHECK_INTERVAL_MS };
    } catch (error) {
      if (error instanceof Failure && error !== WATCH_ENDED && error.message !== this.#failure) {
        this.#failure = error.message;
        this.#options.events.mtuUnknown(error);
      }
      throw error;
    } finally {
      this.#onReading();
    }
  }

  /** Has the links read now, and on each change. @throws Failure when the watch cannot be opened, and at its end */
  async #watch(signal: AbortSignal): Promise<never> {
    const { links, patterns } = this.#options;
    let end = (): void => undefined;
    const over = new Promise<void>((resolve) => (end = resolve));
    signal.addEventListener('abort', end);
    const changed = (name: string | undefined): void => {
      if (name === undefined || isNodeInterface(name, patterns)) this.#queue.restart('read');
    };
    const watch = await links.watch({ changed, ended: end });
    this.#queue.request('read');
    await over;
    watch.close();
    throw WATCH_ENDED;
  }

  /** @throws Failure when the links cannot be read */
  async #read(): Promise<void> {
    const { links, patterns, events } = this.#options;
    const found = await links.links();
    const before = this.#mtu;
    const { from, bytes } = this.#overheadBy(found);
    const detected = detectMtu(found, patterns, bytes);
    this.#failure = undefined;
    if (before.phase === 'unknown' || !isSame(before.detected, detected)) events.mtuDetected(detected);
    if (from === 'pools') this.#setFinal(detected);
    else this.#mtu = { phase: 'provisional', detected };
  }

  /** Overhead that the previous process subtracted, until the pools are known: the network's MTU minus most pods' MTU. */
  #overheadBy(links: readonly NodeLink[]): Exclude<Overhead, { from: 'existing-pods' }> {
    if (this.#overhead.from !== 'existing-pods') return this.#overhead;
    const { mtuBytes } = detectMtu(links, this.#options.patterns, 0);
    const ofPodsBytes = mostFrequentMtuBytes(links, this.#overhead.hostInterfaces) ?? mtuBytes;
    this.#overhead = { from: 'first-reading', bytes: Math.max(0, mtuBytes - ofPodsBytes) };
    return this.#overhead;
  }

  #setFinal(detected: DetectedMtu): void {
    const before = this.#mtu;
    this.#mtu = { phase: 'final', detected };
    if (before.phase === 'final' && before.detected.mtuBytes === detected.mtuBytes) return;
    for (const listener of this.#listeners) listener(detected.mtuBytes);
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
