import { Failure } from '@podwire/shared/failure/failure';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
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
  /** Pods get another MTU from here on. */
  mtuDetected(detected: DetectedMtu): void;
  /** Pods get what an operator has set, in bytes. */
  mtuSet(mtuBytes: number): void;
  /** The node's interfaces cannot be read; it is tried again. */
  mtuUnknown(failure: Failure): void;
}

interface PodMtuOptions {
  readonly links: LinkSource;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly events: MtuEvents;
  /** What an operator has set, in bytes; 0: it is detected. */
  readonly fixedBytes: number;
  /** The interfaces that count: names, or their beginnings with a `*`. */
  readonly patterns: readonly string[];
}

/** How often the interfaces are looked at without being told of a change, in milliseconds. */
export const LOOK_INTERVAL_MS = 90_000;

/** Until changes are told again, and the links can be read. */
const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Told the MTU of pods that ask for none, in bytes, once it is known, and each time it is another. */
type MtuListener = (mtuBytes: number) => void;

/**
 * The MTU of pods that ask for none. It follows the node's interfaces and the pools: pods wired from then on get the new one, and
 * listeners give it to those that are there.
 */
export class PodMtu implements Follower {
  readonly #options: PodMtuOptions;
  readonly #listeners: MtuListener[] = [];
  readonly #stopping = new AbortController();
  #pools: readonly ClusterPool[] | undefined;
  /** Host interfaces of the pods that were there at the start and ask for no MTU. */
  #wires: ReadonlySet<string> = new Set();
  /** What encapsulation takes as long as the pools are not known, in bytes; undefined before the first look. */
  #assumedOverheadBytes: number | undefined;
  #detected: DetectedMtu | undefined;
  /** What listeners were told last. */
  #told: number | undefined;
  #watch: LinkWatch | undefined;
  /** How often changes were not told, or a look failed, since that was well for long. */
  #attempt = 0;
  /** Ends the pause before the next round. */
  #wake = new AbortController();
  #looking: Promise<void> = Promise.resolve();
  #isLookWaiting = false;
  #rounds: Promise<void> = Promise.resolve();
  #failure: string | undefined;

  constructor(options: PodMtuOptions) {
    this.#options = options;
  }

  /**
   * Looks at the node's interfaces, and keeps an eye on them. Resolves after the first look, whatever came of it.
   * @param wires - host interfaces of the pods that are there and ask for no MTU
   */
  async start(wires: readonly string[] = []): Promise<void> {
    this.#wires = new Set(wires);
    if (this.#options.fixedBytes > 0) {
      this.#detected = { mtuBytes: this.#options.fixedBytes, interfaceName: undefined, overheadBytes: 0 };
      this.#options.events.mtuSet(this.#options.fixedBytes);
      this.#tell();
      return;
    }
    await this.#look();
    this.#rounds = this.#goRound();
  }

  /**
   * What a pod gets that is wired at this moment, in bytes. Before the pools are known as much is taken off for their encapsulation as
   * is of the pods that are there, so that these keep what they have, however long IPAM is away. Without any nothing is: that is
   * corrected as soon as the pools are known, before the pod's packets have gone far.
   */
  get mtuBytes(): number {
    return this.#detected?.mtuBytes ?? ASSUMED_MTU_BYTES;
  }

  /** Tells a listener from here on. What is known already it is told at once. It must not throw. */
  onChange(listener: MtuListener): void {
    this.#listeners.push(listener);
    if (this.#told !== undefined) listener(this.#told);
  }

  follow({ cluster }: ClusterView, change: ClusterChange): void {
    if (this.#pools && !change.others) return;
    this.#pools = [...cluster.pools.values()];
    if (this.#options.fixedBytes === 0) void this.#look();
  }

  /** Why the MTU may be another than it should be. */
  conditions(): readonly Condition[] {
    if (this.#failure === undefined) return [];
    return [{ reason: 'MtuUnknown', message: `the node's interfaces cannot be read: ${this.#failure}` }];
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#watch?.close();
    await this.#rounds;
    await this.#looking;
  }

  /** Looks once more after a look that is under way, as that may have seen what was there before. */
  #look(): Promise<void> {
    if (this.#isLookWaiting) return this.#looking;
    this.#isLookWaiting = true;
    this.#looking = this.#looking.then(async () => {
      this.#isLookWaiting = false;
      await this.#lookOnce();
    });
    return this.#looking;
  }

  async #lookOnce(): Promise<void> {
    const { links, patterns, events } = this.#options;
    try {
      if (!this.#watch && !this.#stopping.signal.aborted) this.#watch = await this.#open();
      const before = this.#detected;
      const found = await links.links();
      const overheadBytes = this.#pools ? mostOverhead(this.#pools) : this.#assumedOverhead(found);
      const detected = detectMtu(found, patterns, overheadBytes);
      this.#detected = detected;
      this.#failure = undefined;
      if (!before || !isSame(before, detected)) events.mtuDetected(detected);
      if (this.#pools) this.#tell();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.message !== this.#failure) events.mtuUnknown(error);
      this.#failure = error.message;
    }
  }

  /** What the process before has taken off, by the pods that it wired. */
  #assumedOverhead(links: readonly NodeLink[]): number {
    if (this.#assumedOverheadBytes === undefined) {
      const { mtuBytes } = detectMtu(links, this.#options.patterns, 0);
      this.#assumedOverheadBytes = Math.max(0, mtuBytes - (commonMtu(links, this.#wires) ?? mtuBytes));
    }
    return this.#assumedOverheadBytes;
  }

  /** @returns undefined where it has ended already */
  async #open(): Promise<LinkWatch | undefined> {
    const { clock } = this.#options;
    const ended = new AbortController();
    const openedAtMs = clock.nowMs();
    const watch = await this.#options.links.watch({
      changed: (name) => {
        if (name === undefined || isNodeInterface(name, this.#options.patterns)) void this.#look();
      },
      ended: () => {
        ended.abort();
        this.#watch = undefined;
        // One that ends again and again as soon as it is open is no better than one that is refused.
        if (clock.nowMs() - openedAtMs >= BACKOFF.maxMs) this.#attempt = 0;
        this.#wake.abort();
      },
    });
    if (this.#stopping.signal.aborted) watch.close();
    return ended.signal.aborted ? undefined : watch;
  }

  /** Looks now and then; soon where changes are not told, or a look failed, as nobody knows what was changed meanwhile. */
  async #goRound(): Promise<void> {
    const { clock, random } = this.#options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      this.#wake = new AbortController();
      const isHearing = this.#watch !== undefined && this.#failure === undefined;
      const pauseMs = isHearing ? LOOK_INTERVAL_MS : backoffMs(this.#attempt++, BACKOFF, random());
      const pause = await clock.sleep(pauseMs, AbortSignal.any([signal, this.#wake.signal]));
      if (pause === 'elapsed') await this.#look();
      if (pause === 'elapsed' && isHearing) this.#attempt = 0;
    }
  }

  #tell(): void {
    const mtuBytes = this.mtuBytes;
    if (mtuBytes === this.#told) return;
    this.#told = mtuBytes;
    for (const listener of this.#listeners) listener(mtuBytes);
  }
}

function isSame(a: DetectedMtu, b: DetectedMtu): boolean {
  return a.mtuBytes === b.mtuBytes && a.interfaceName === b.interfaceName && a.overheadBytes === b.overheadBytes;
}

/**
 * Assumed of the node's network when no interface of it is known, in bytes: Ethernet's. Calico assumes 1460, for one provider's
 * network; there the interfaces have names that the setting's default knows, so that nothing has to be assumed.
 */
const ASSUMED_MTU_BYTES = 1500;

/** What IPv4 asks of every link, in bytes (RFC 791); the kernel refuses less. */
const LEAST_MTU_BYTES = 68;

/** An MTU for pods, and where it comes from. */
export interface DetectedMtu {
  readonly mtuBytes: number;
  /** Name of the interface that limits it; undefined when there is none that counts. */
  readonly interfaceName: string | undefined;
  /** What the encapsulation of pools takes of it, in bytes. */
  readonly overheadBytes: number;
}

/**
 * The MTU of pods on this node: the smallest of the node's interfaces, minus what encapsulation adds. An interface counts when it is
 * up and its name fits; Podwire's own devices and pods' interfaces never do.
 * @param patterns - names, or their beginnings with a `*`
 * @param overheadBytes - the {@link mostOverhead} of the pools
 */
export function detectMtu(links: readonly NodeLink[], patterns: readonly string[], overheadBytes: number): DetectedMtu {
  const counting = links.filter(({ name, up }) => up && isNodeInterface(name, patterns));
  const smallest = counting.toSorted((a, b) => a.mtuBytes - b.mtuBytes)[0];
  return {
    mtuBytes: Math.max(LEAST_MTU_BYTES, (smallest?.mtuBytes ?? ASSUMED_MTU_BYTES) - overheadBytes),
    interfaceName: smallest?.name,
    overheadBytes,
  };
}

/** What most of some links have, in bytes: the lower where two are as many. Undefined where none of them is there. */
export function commonMtu(links: readonly NodeLink[], names: ReadonlySet<string>): number | undefined {
  const counts = new Map<number, number>();
  for (const { name, mtuBytes } of links) if (names.has(name)) counts.set(mtuBytes, (counts.get(mtuBytes) ?? 0) + 1);
  return [...counts].toSorted(([a, ofA], [b, ofB]) => ofB - ofA || a - b)[0]?.[0];
}

/** Whether a link, by its name, is one of those that the node has to the network. */
export function isNodeInterface(name: string, patterns: readonly string[]): boolean {
  if (name === 'lo' || TUNNEL_DEVICES.includes(name) || isPodInterface({ name, alias: null })) return false;
  return patterns.some((pattern) => (pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern));
}

/** The most that a pool's encapsulation takes of each packet, in bytes. */
export function mostOverhead(pools: readonly ClusterPool[]): number {
  return Math.max(0, ...pools.map(overheadOf));
}

/** What a pool's encapsulation takes of each packet, in bytes. Of IPv6 in IPIP there is none: such pools have no tunnel. */
function overheadOf(pool: ClusterPool): number {
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
