import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AddressSet } from './address-sets.js';
import { Follower, isEmpty, splitUpdate, type NodeUpdate } from './distribution.js';
import { PodAddresses } from './pod-addresses.js';
import { Profiles } from './profiles.js';
import type { NodeProgress, PolicyState } from './status.js';

export interface NetworkPoliciesOptions {
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
  /** Why no node may follow the policies now; undefined if nodes may. */
  readonly refusal: () => Failure | undefined;
}

export interface FollowRequest {
  readonly nodeName: string;
  /** Digests of the sets that the node has, by their IDs. */
  readonly sets: ReadonlyMap<string, bigint>;
}

export interface PolicyMessage {
  readonly streamId: string;
  /** From 1. */
  readonly number: number;
  /** Whether this message ends the snapshot. */
  readonly isComplete: boolean;
  readonly update: NodeUpdate;
}

export interface Acknowledgement {
  readonly nodeName: string;
  readonly streamId: string;
  readonly number: number;
}

/** Serves network policies to nodes; undefined where podwire-ipam has no API server. */
export interface PolicyDistributor {
  follow(request: FollowRequest, signal: AbortSignal): AsyncIterable<PolicyMessage>;
  acknowledge(acknowledgement: Acknowledgement): void;
}

interface PolicyStream {
  readonly id: string;
  readonly follower: Follower;
  sentNumber: number;
  acknowledgedNumber: number;
  readonly openedAtMs: number;
  /** When the oldest message that is not acknowledged was sent, or the last acknowledgement came if that is later. */
  waitsSinceMs: number;
  isSuperseded: boolean;
  /** Whether there may be something to send. */
  isDue: boolean;
  wake: () => void;
}

/** Changes within this time are sent together, in milliseconds. */
const BATCH_MS = 5;

/** A node that acknowledges nothing for longer, though a message waits, is behind, in milliseconds. */
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
  /** Changes since the last batch. */
  readonly #changedSets = new Set<AddressSet>();
  #unknownPodsChanged = false;
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
        this.#changedSets.add(set);
        this.#batch();
      },
      unknownPodsChanged: () => {
        this.#unknownPodsChanged = true;
        this.#batch();
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
  async *follow({ nodeName, sets }: FollowRequest, signal: AbortSignal): AsyncGenerator<PolicyMessage, void, void> {
    const refusal = this.#options.refusal();
    if (refusal) throw refusal;
    const stream = this.#open(nodeName, new Follower(nodeName, this.profiles, sets));
    try {
      for (let isSnapshot = true; !signal.aborted; isSnapshot = false) {
        if (stream.isSuperseded) throw supersededFailure(nodeName);
        const update = stream.follower.collect();
        if (!update)
          throw new Failure('UNREACHABLE', `node ${nodeName}: reads network policies too slowly; follow again`);
        const parts = isSnapshot || !isEmpty(update) ? splitUpdate(update) : [];
        for (const [index, part] of parts.entries()) {
          const isComplete = isSnapshot && index === parts.length - 1;
          if (stream.acknowledgedNumber === stream.sentNumber) stream.waitsSinceMs = this.#options.clock.monotonicMs();
          yield { streamId: stream.id, number: ++stream.sentNumber, isComplete, update: part };
        }
        await untilDue(stream, signal);
      }
    } finally {
      if (this.#streams.get(nodeName) === stream) this.#close(nodeName);
    }
  }

  /** @throws Failure SESSION_SUPERSEDED when the stream is not the node's present one */
  acknowledge({ nodeName, streamId, number }: Acknowledgement): void {
    const stream = this.#streams.get(nodeName);
    if (stream?.id !== streamId) throw supersededFailure(nodeName);
    if (number <= stream.acknowledgedNumber) return;
    stream.acknowledgedNumber = Math.min(number, stream.sentNumber);
    stream.waitsSinceMs = this.#options.clock.monotonicMs();
  }

  /** Stops the timer. The streams are ended by their signals. */
  close(): void {
    this.#cancelBatch?.();
  }

  #open(nodeName: string, follower: Follower): PolicyStream {
    const earlier = this.#streams.get(nodeName);
    if (earlier) {
      earlier.isSuperseded = true;
      wake(earlier);
    }
    const nowMs = this.#options.clock.monotonicMs();
    const stream: PolicyStream = {
      ...{ id: this.#options.newUid(), follower, sentNumber: 0, acknowledgedNumber: 0 },
      ...{ openedAtMs: nowMs, waitsSinceMs: nowMs },
      ...{ isSuperseded: false, isDue: false, wake: () => undefined },
    };
    this.#streams.set(nodeName, stream);
    this.#ends.delete(nodeName);
    return stream;
  }

  #close(nodeName: string): void {
    this.#streams.delete(nodeName);
    this.#ends.set(nodeName, this.#options.clock.monotonicMs());
    const [oldest] = this.#ends.keys();
    if (oldest !== undefined && this.#ends.size > KEPT_ENDS_COUNT) this.#ends.delete(oldest);
  }

  #podChanged(nodeName: string, key: string): void {
    const stream = this.#streams.get(nodeName);
    if (!stream) return;
    stream.follower.podChanged(key);
    this.#batch();
  }

  #batch(): void {
    this.#cancelBatch ??= this.#options.clock.after(BATCH_MS, () => {
      this.#cancelBatch = undefined;
      this.#distribute();
    });
  }

  /** Each set is looked up once for each node, however often it has changed. */
  #distribute(): void {
    for (const stream of this.#streams.values()) {
      stream.follower.setsChanged(this.#changedSets);
      if (this.#unknownPodsChanged) stream.follower.unknownPodsChanged();
      if (stream.follower.hasChanges) wake(stream);
    }
    this.#changedSets.clear();
    this.#unknownPodsChanged = false;
  }
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
