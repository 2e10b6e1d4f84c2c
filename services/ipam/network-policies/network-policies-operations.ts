import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AddressSet } from './address-sets.js';
import { Follower, isEmpty, splitUpdate, type NodeUpdate } from './distribution.js';
import { PodAddresses, type Announcement } from './pod-addresses.js';
import { Profiles } from './profiles.js';
import type { NodeProgress, PolicyState } from './status.js';

export interface NetworkPoliciesOptions {
  readonly clock: Clock;
  /** Why no node may follow the policies now; undefined if nodes may. */
  readonly refusal: () => Failure | undefined;
}

export interface FollowRequest {
  readonly nodeName: string;
  /** Digests of the sets that the node has, by their IDs. */
  readonly sets: ReadonlyMap<string, bigint>;
  /** Delivers the numbers of messages that are in force on the node, with all before them. */
  readonly acknowledged: (listener: (number: number) => void) => void;
}

export interface PolicyMessage {
  /** From 1. */
  readonly number: number;
  /** Whether this message ends the snapshot. */
  readonly isComplete: boolean;
  readonly update: NodeUpdate;
}

/** Serves network policies to nodes; undefined where podwire-ipam has no API server. */
export interface PolicyDistributor {
  follow(request: FollowRequest, signal: AbortSignal): AsyncIterable<PolicyMessage>;
  announce(announcement: Announcement, signal: AbortSignal): Promise<number>;
}

interface PolicyStream {
  readonly follower: Follower;
  sentNumber: number;
  acknowledgedNumber: number;
  readonly openedAtMs: number;
  /** When the oldest message that is not acknowledged was sent, or the last acknowledgement came if that is later. */
  waitsSinceMs: number;
  isEnded: boolean;
  /** Whether there may be something to send. */
  isDue: boolean;
  wake: () => void;
  /** Called when changes are sent or acknowledged, and when the stream has ended. */
  readonly waiting: Set<() => void>;
}

/** Changes within this time are sent together, in milliseconds; the first one after it at once. */
const BATCH_MS = 5;

/** Nodes that get their changes in one turn of the event loop. Each takes 0.1 ms of processor time, and pods wait for addresses. */
const NODES_PER_TURN = 50;

/** A node that is behind and acknowledges nothing for so long may be gone: pods do not wait for it. */
const LOST_AFTER_MS = 2000;

/** A node that acknowledges nothing for longer, though a message waits, is reported as behind, in milliseconds. */
const BEHIND_MS = 10_000;

/** Ends of streams that are remembered, of as many nodes. */
const KEPT_ENDS_COUNT = 10_000;

/** The cluster's network policies, and the nodes that follow them. */
export class NetworkPolicies implements PolicyDistributor, PolicyState {
  readonly addresses: PodAddresses;
  readonly profiles: Profiles;
  readonly #options: NetworkPoliciesOptions;
  /** Streams by the name of their node. */
  readonly #streams = new Map<string, PolicyStream>();
  /** When the last stream of a node ended that has none, by its name. */
  readonly #ends = new Map<string, number>();
  /** Streams of the nodes that have a set. */
  readonly #users = new Map<AddressSet, Set<PolicyStream>>();
  /** Streams with changes since the last batch. */
  readonly #due = new Set<PolicyStream>();
  #distributedAtMs = 0;
  /** Streams of the sets that the present announcement changes. */
  #announced: Set<PolicyStream> | undefined;
  #cancelBatch: (() => void) | undefined;

  constructor(options: NetworkPoliciesOptions) {
    this.#options = options;
    this.addresses = new PodAddresses({
      changed: (pod) => this.profiles.pods.readAddresses(pod),
      poolsChanged: () => {
        for (const { pod } of this.profiles.pods.pods()) this.profiles.pods.readAddresses(pod);
      },
    });
    this.profiles = new Profiles({
      addressesOf: (pod) => this.addresses.of(pod),
      podChanged: (nodeName, key) => this.#podChanged(nodeName, key),
      setChanged: (set) => {
        for (const stream of this.#users.get(set) ?? []) {
          stream.follower.setChanged(set);
          this.#announced?.add(stream);
          this.#batch(stream);
        }
      },
      unknownPodsChanged: () => {
        for (const stream of this.#streams.values()) {
          stream.follower.unknownPodsChanged();
          this.#batch(stream);
        }
      },
    });
  }

  get followers(): Iterable<string> {
    return this.#streams.keys();
  }

  /** Nodes that follow, and nodes of these that are behind. */
  get nodes(): { readonly following: number; readonly behind: number } {
    const names = [...this.followers];
    const behind = names.filter((name) => this.progressOf(name).isBehind).length;
    return { following: names.length, behind };
  }

  progressOf(nodeName: string): NodeProgress {
    const nowMs = this.#options.clock.monotonicMs();
    const { openedAtMs, sentNumber = 0, acknowledgedNumber = 0, waitsSinceMs = 0 } = this.#streams.get(nodeName) ?? {};
    const sinceMs = openedAtMs ?? this.#ends.get(nodeName);
    const behindForMs = acknowledgedNumber < sentNumber ? nowMs - waitsSinceMs : undefined;
    return {
      isFollowing: openedAtMs !== undefined,
      forMs: sinceMs === undefined ? undefined : nowMs - sinceMs,
      sentNumber,
      acknowledgedNumber,
      behindForMs,
      isBehind: (behindForMs ?? 0) > BEHIND_MS,
    };
  }

  /**
   * A snapshot of what the node needs, and then each change, until the signal fires. A node that does not read keeps no messages
   * waiting: the next one has everything that changed meanwhile.
   * @throws Failure of the refusal; SESSION_SUPERSEDED when the node opens another stream; UNREACHABLE when the node is too far
   * behind
   */
  async *follow(request: FollowRequest, signal: AbortSignal): AsyncGenerator<PolicyMessage, void, void> {
    this.#requireServing();
    const { nodeName } = request;
    const stream = this.#open(request);
    request.acknowledged((number) => this.#acknowledge(stream, number));
    try {
      for (let isSnapshot = true; !signal.aborted; isSnapshot = false) {
        if (stream.isEnded) throw supersededFailure(nodeName);
        const update = stream.follower.collect();
        if (!update)
          throw new Failure('UNREACHABLE', `node ${nodeName}: reads network policies too slowly; follow again`);
        const parts = isSnapshot || !isEmpty(update) ? splitUpdate(update) : [];
        if (!isBehind(stream)) stream.waitsSinceMs = this.#options.clock.monotonicMs();
        const firstNumber = stream.sentNumber + 1;
        stream.sentNumber += parts.length;
        for (const check of stream.waiting) check();
        for (const [index, part] of parts.entries()) {
          const isComplete = isSnapshot && index === parts.length - 1;
          yield { number: firstNumber + index, isComplete, update: part };
        }
        await untilDue(stream, signal);
      }
    } finally {
      this.#close(stream);
    }
  }

  /**
   * Sends a pod's addresses to the nodes that need them, and waits until they have put them in force, or the signal fires.
   * @returns how many nodes it has waited for
   * @throws Failure of the refusal
   */
  async announce(announcement: Announcement, signal: AbortSignal): Promise<number> {
    this.#requireServing();
    // Also the sets of an earlier pod that lose its address.
    const users = new Set<PolicyStream>();
    this.#announced = users;
    this.addresses.announce(announcement);
    this.#announced = undefined;
    for (const set of this.profiles.pods.setsOf(announcement.pod))
      for (const stream of this.#users.get(set) ?? []) users.add(stream);
    const behind = [...users].filter((stream) => isBehind(stream) && !this.#isLost(stream));
    await this.#untilCaughtUp(behind, signal);
    return behind.length;
  }

  /** Stops the timer. The streams are ended by their signals. */
  close(): void {
    this.#cancelBatch?.();
  }

  /** @throws Failure of the refusal */
  #requireServing(): void {
    const refusal = this.#options.refusal();
    if (refusal) throw refusal;
  }

  #acknowledge(stream: PolicyStream, number: number): void {
    if (number <= stream.acknowledgedNumber) return;
    stream.acknowledgedNumber = Math.min(number, stream.sentNumber);
    stream.waitsSinceMs = this.#options.clock.monotonicMs();
    for (const check of stream.waiting) check();
  }

  #open({ nodeName, sets: known }: FollowRequest): PolicyStream {
    const earlier = this.#streams.get(nodeName);
    if (earlier) this.#close(earlier);
    const onUse = (set: AddressSet, isUsed: boolean): void => this.#setUsed(set, stream, isUsed);
    const nowMs = this.#options.clock.monotonicMs();
    const stream: PolicyStream = {
      ...{ sentNumber: 0, acknowledgedNumber: 0, openedAtMs: nowMs, waitsSinceMs: nowMs },
      ...{ isEnded: false, isDue: false, wake: () => undefined, waiting: new Set() },
      follower: new Follower({ nodeName, profiles: this.profiles, known, onUse }),
    };
    this.#streams.set(nodeName, stream);
    this.#ends.delete(nodeName);
    return stream;
  }

  #close(stream: PolicyStream): void {
    if (stream.isEnded) return;
    stream.isEnded = true;
    stream.follower.close();
    this.#due.delete(stream);
    const { nodeName } = stream.follower;
    this.#streams.delete(nodeName);
    this.#ends.set(nodeName, this.#options.clock.monotonicMs());
    const [oldest] = this.#ends.keys();
    if (oldest !== undefined && this.#ends.size > KEPT_ENDS_COUNT) this.#ends.delete(oldest);
    wake(stream);
    for (const check of stream.waiting) check();
  }

  #setUsed(set: AddressSet, stream: PolicyStream, isUsed: boolean): void {
    const users = this.#users.get(set) ?? new Set();
    if (isUsed) this.#users.set(set, users.add(stream));
    else if (users.delete(stream) && users.size === 0) this.#users.delete(set);
  }

  /**
   * Resolves when each node has put everything in force that has changed before the call, its stream has ended, or it is lost; or when the
   * signal fires.
   */
  #untilCaughtUp(streams: readonly PolicyStream[], signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    return new Promise((resolve) => {
      const checks = new Map<PolicyStream, () => void>();
      let cancel = (): void => undefined;
      const end = (): void => {
        for (const [stream, check] of checks) stream.waiting.delete(check);
        signal.removeEventListener('abort', end);
        cancel();
        resolve();
      };
      for (const stream of streams) {
        const isOver = this.#catchUp(stream);
        if (isOver()) continue;
        const check = (): void => {
          if (!isOver()) return;
          stream.waiting.delete(check);
          checks.delete(stream);
          if (checks.size === 0) end();
        };
        checks.set(stream, check);
        stream.waiting.add(check);
      }
      const watch = (): void => {
        cancel = clock.after(LOST_AFTER_MS, () => {
          watch();
          for (const check of checks.values()) check();
        });
      };
      watch();
      signal.addEventListener('abort', end, { once: true });
      if (checks.size === 0 || signal.aborted) end();
    });
  }

  /**
   * @returns whether the node has put everything in force that has changed before the function's first call, or is not waited for any
   * longer
   */
  #catchUp(stream: PolicyStream): () => boolean {
    // The changes are in the next update, which is one message or more, or in messages that are sent.
    let number: number | undefined;
    return () => {
      number ??= stream.follower.hasChanges ? undefined : stream.sentNumber;
      const isInForce = number !== undefined && stream.acknowledgedNumber >= number;
      return isInForce || stream.isEnded || this.#isLost(stream);
    };
  }

  #isLost({ waitsSinceMs }: PolicyStream): boolean {
    return this.#options.clock.monotonicMs() - waitsSinceMs >= LOST_AFTER_MS;
  }

  #podChanged(nodeName: string, key: string): void {
    const stream = this.#streams.get(nodeName);
    if (!stream) return;
    stream.follower.podChanged(key);
    this.#batch(stream);
  }

  #batch(stream: PolicyStream): void {
    const { clock } = this.#options;
    const hasWaited = stream.acknowledgedNumber < stream.sentNumber || stream.isDue || this.#due.has(stream);
    if (!hasWaited) stream.waitsSinceMs = clock.monotonicMs();
    this.#due.add(stream);
    if (this.#cancelBatch) return;
    const delayMs = this.#distributedAtMs + BATCH_MS - clock.monotonicMs();
    if (delayMs > 0) {
      this.#cancelBatch = clock.after(delayMs, () => this.#distribute());
      return;
    }
    // All nodes of the change that is being applied. A timer of 0 ms takes 1 ms.
    this.#cancelBatch = () => undefined;
    queueMicrotask(() => this.#distribute());
  }

  #distribute(): void {
    const { clock } = this.#options;
    this.#distributedAtMs = clock.monotonicMs();
    for (const stream of [...this.#due].slice(0, NODES_PER_TURN)) {
      this.#due.delete(stream);
      wake(stream);
    }
    this.#cancelBatch = this.#due.size > 0 ? clock.after(0, () => this.#distribute()) : undefined;
  }
}

/** Whether the node has to put something in force. */
function isBehind({ follower, sentNumber, acknowledgedNumber }: PolicyStream): boolean {
  return follower.hasChanges || acknowledgedNumber < sentNumber;
}

function wake(stream: PolicyStream): void {
  stream.isDue = true;
  stream.wake();
}

async function untilDue(stream: PolicyStream, signal: AbortSignal): Promise<void> {
  if (!stream.isDue && !signal.aborted)
    await new Promise<void>((resolve) => {
      stream.wake = () => {
        signal.removeEventListener('abort', stream.wake);
        resolve();
      };
      signal.addEventListener('abort', stream.wake, { once: true });
    });
  stream.isDue = false;
  stream.wake = () => undefined;
}

function supersededFailure(nodeName: string): Failure {
  return new Failure(
    'SESSION_SUPERSEDED',
    `node ${nodeName}: another stream of its network policies is the present one`,
  );
}
