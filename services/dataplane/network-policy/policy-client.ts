import { NetworkPolicyServiceService, type FollowPoliciesRequest } from '@podwire/proto/podwire/ipam/v1/network_policy';
import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';
import { exponentialBackoff, WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import { histogram, onFirstUse } from '@podwire/shared/telemetry/instruments';

import type { Condition } from '../conditions/conditions.js';
import type { PolicyFilter } from './policy-filter.js';
import type { PolicyView, ViewChange } from './policy-view.js';

type Connection = ReturnType<PolicyClientOptions['connect']>;

/** Receives the client's events. */
export interface ClientEvents {
  /** The policies of this node's pods are known, and in force. */
  policiesFollowed(service: string): void;
  /** The stream ended, or was refused; it is opened again. */
  policiesLost(error: unknown): void;
}

interface PolicyClientOptions {
  /** Name of this node. */
  readonly self: string;
  /** Opens a connection to a podwire-ipam; of several the next one may be another. */
  readonly connect: () => Pick<Peer, 'stream' | 'call' | 'close' | 'description'>;
  readonly view: PolicyView;
  readonly filter: Pick<PolicyFilter, 'update'>;
  /** Allocations that podwire-ipam has not recorded for their pods yet. */
  readonly unbound: () => readonly RecordedAllocation[];
  /** How long a pod waits until other nodes know its addresses, in milliseconds; 0: not at all. */
  readonly waitMs: number;
  readonly events: ClientEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

const BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 5000 };

/** Attempts to find the podwire-ipam that serves policies, before a failure is reported. */
const ATTEMPTS_COUNT = 6;

const REPEAT_AFTER_MS = 1000;

/** Time for other nodes to put a pod's addresses in force, beyond the wait: it is measured. */
const ANNOUNCE_TIMEOUT_MS = 5000;

const { followPolicies: FOLLOW, announcePod: ANNOUNCE } = NetworkPolicyServiceService;

const knownEverywhere = onFirstUse(() => histogram('podwire.policy.known_everywhere'));

/**
 * Follows podwire-ipam's policies for this node's pods, and reports which of its messages are in force. While podwire-ipam is
 * unreachable, the last policies stay in force.
 *
 * A message is read while the one before is written to the kernel, so a burst of changes takes few writes.
 */
export class PolicyClient {
  readonly #options: PolicyClientOptions;
  readonly #queue: WorkQueue<'follow'>;
  readonly #stopping = new AbortController();
  /** The podwire-ipam whose policies this node follows. */
  #followed: Connection | undefined;
  /** Attempts since the last stream. */
  #failuresCount = 0;
  #lost: { readonly error: unknown } | undefined;

  constructor(options: PolicyClientOptions) {
    this.#options = options;
    const { clock, random } = options;
    const retryInMs = exponentialBackoff(BACKOFF, random);
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        await this.#follow(signal);
        return { inMs: retryInMs(0) };
      },
      onFailure: (error) => this.#fail(error),
      retryInMs,
      clock,
    });
  }

  /** Starts; call once. */
  start(): void {
    this.#queue.request('follow');
  }

  conditions(): readonly Condition[] {
    if (!this.#lost) return [];
    const { error } = this.#lost;
    const reason = error instanceof Failure ? error.message : 'internal error';
    const message = `changes of network policies do not reach this node, and the last ones stay in force: ${reason}`;
    return [{ reason: 'PoliciesNotFollowed', message }];
  }

  /**
   * Announces the addresses of a pod that is being wired to other nodes, as their policies may name it. Resolves when the nodes have put
   * them in force, or after the wait. Never rejects: a pod starts without podwire-ipam, and its addresses arrive later.
   */
  async announce(allocation: RecordedAllocation): Promise<void> {
    const { view, waitMs, clock } = this.#options;
    const ipam = this.#followed;
    if (!ipam || !view.hasPolicies || !allocation.pod) return;
    const announced = this.#announce(ipam, allocation).catch(() => undefined);
    if (waitMs === 0) return;
    await new Promise<void>((resolve) => {
      const cancel = clock.after(waitMs, resolve);
      void announced.then(() => {
        cancel();
        resolve();
      });
    });
  }

  /** Leaves the policies in force. Idempotent. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#queue.stop();
  }

  /** @throws Failure of the call */
  async #announce(ipam: Connection, { pod, addresses }: RecordedAllocation): Promise<void> {
    const { self: nodeName, clock, waitMs } = this.#options;
    const startedAtMs = clock.monotonicMs();
    const limits = { deadlineMs: clock.nowMs() + Math.max(waitMs, ANNOUNCE_TIMEOUT_MS), signal: this.#stopping.signal };
    const { nodes } = await ipam.call(ANNOUNCE, { nodeName, pod, addresses: [...addresses] }, limits);
    if (nodes === 0) return;
    const tookMs = clock.monotonicMs() - startedAtMs;
    knownEverywhere().record(tookMs / 1000, { pod: tookMs <= waitMs ? 'waited' : 'started' });
  }

  /**
   * Runs one stream, on a connection of its own: of several podwire-ipam behind one address, one serves policies.
   * @throws Failure that ended it before the snapshot was complete
   */
  async #follow(signal: AbortSignal): Promise<void> {
    const { self: nodeName, connect, view } = this.#options;
    const ipam = connect();
    const request = { nodeName, sets: view.beginStream(), acknowledgedNumber: 0n };
    let send: (acknowledgement: FollowPoliciesRequest) => void = () => undefined;
    const acknowledge = (acknowledgedNumber: bigint): void => send({ nodeName: '', sets: [], acknowledgedNumber });
    const enforcement = new Enforcement(this.#options, acknowledge, signal);
    let isComplete = false;
    try {
      for await (const message of ipam.stream(FOLLOW, request, signal, (opened) => (send = opened))) {
        const change = view.apply(message);
        if (!change || signal.aborted) continue;
        void enforcement.enforce(change, message.number);
        if (!isComplete) this.#found(ipam);
        isComplete = true;
      }
      throw new Failure('UNREACHABLE', `${ipam.description}: the stream of policies ended`);
    } catch (error) {
      if (!isComplete) throw error;
      if (!signal.aborted) this.#lose(error);
    } finally {
      this.#followed = undefined;
      view.isFollowed = false;
      ipam.close();
    }
  }

  /** Another podwire-ipam may serve policies. */
  #fail(error: unknown): void {
    this.#failuresCount += 1;
    const isElsewhere = error instanceof Failure && error.code === 'POLICIES_NOT_SERVED';
    if (!isElsewhere || this.#failuresCount >= ATTEMPTS_COUNT) this.#lose(error);
  }

  #found(ipam: Connection): void {
    this.#failuresCount = 0;
    const { events, unbound } = this.#options;
    if (this.#lost) events.policiesFollowed(ipam.description);
    this.#lost = undefined;
    this.#followed = ipam;
    this.#options.view.isFollowed = true;
    for (const allocation of unbound()) void this.announce(allocation);
  }

  #lose(error: unknown): void {
    if (!this.#lost) this.#options.events.policiesLost(error);
    this.#lost = { error };
  }
}

/** Puts the changes of a stream in force, and acknowledges the latest message of them. */
class Enforcement {
  readonly #options: PolicyClientOptions;
  readonly #acknowledge: (number: bigint) => void;
  readonly #signal: AbortSignal;
  #inForce = 0n;
  /** The latest message that could not be put in force. */
  #failed: bigint | undefined;
  #isRepeating = false;

  constructor(options: PolicyClientOptions, acknowledge: (number: bigint) => void, signal: AbortSignal) {
    this.#options = options;
    this.#acknowledge = acknowledge;
    this.#signal = signal;
  }

  /** Never throws: what fails is repeated, as the table is. */
  async enforce(change: ViewChange, number: bigint): Promise<void> {
    try {
      await this.#options.filter.update(change);
      this.#done(number);
    } catch {
      this.#failed = number;
      if (!this.#isRepeating) await this.#repeat();
    }
  }

  /** One loop for all failed messages: the table has their changes already as wanted ones. */
  async #repeat(): Promise<void> {
    const { filter, clock } = this.#options;
    this.#isRepeating = true;
    while (this.#failed !== undefined && (await clock.sleep(REPEAT_AFTER_MS, this.#signal)) === 'elapsed') {
      const latest = this.#failed;
      try {
        await filter.update({ sets: new Map(), hasPods: false });
        if (this.#failed === latest) this.#failed = undefined;
        this.#done(latest);
      } catch {
        // The next round.
      }
    }
    this.#isRepeating = false;
  }

  #done(number: bigint): void {
    if (number <= this.#inForce) return;
    this.#inForce = number;
    this.#acknowledge(number);
  }
}
