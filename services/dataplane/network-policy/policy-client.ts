import {
  NetworkPolicyServiceService,
  type FollowPoliciesResponse,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { Failure } from '@podwire/shared/failure/failure';
import { exponentialBackoff, WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Condition } from '../conditions/conditions.js';
import type { PolicyFilter } from './policy-filter.js';
import type { PolicyView, ViewChange } from './policy-view.js';

/** Receives the client's events. */
export interface ClientEvents {
  /** The policies of this node's pods are known, and in force. */
  policiesFollowed(service: string): void;
  /** The stream ended, or was refused; it is opened again. */
  policiesLost(service: string, error: unknown): void;
}

interface PolicyClientOptions {
  /** Name of this node. */
  readonly self: string;
  readonly ipam: Pick<Peer, 'stream' | 'call' | 'description'>;
  readonly view: PolicyView;
  readonly filter: Pick<PolicyFilter, 'update'>;
  readonly events: ClientEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

const BACKOFF: BackoffBounds = { baseMs: 100, maxMs: 5000 };

const ACKNOWLEDGE_TIMEOUT_MS = 5000;
const REPEAT_AFTER_MS = 1000;

const { followPolicies: FOLLOW, acknowledgePolicies: ACKNOWLEDGE } = NetworkPolicyServiceService;

/**
 * Follows podwire-ipam's policies for this node's pods, and reports which of its messages are in force. While podwire-ipam is
 * unreachable, the last policies stay in force.
 *
 * A message is read while the one before is written to the kernel, so a burst of changes takes few writes.
 */
export class PolicyClient {
  readonly #options: PolicyClientOptions;
  readonly #queue: WorkQueue<'follow'>;
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
      onFailure: (error) => this.#lose(error),
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

  /** Leaves the policies in force. Idempotent. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }

  /** Runs one stream. @throws Failure that ended it before the snapshot was complete */
  async #follow(signal: AbortSignal): Promise<void> {
    const { self: nodeName, ipam, view } = this.#options;
    const sets = view.digests();
    const acknowledgements = new Acknowledgements(this.#options, signal);
    view.beginStream();
    let isComplete = false;
    try {
      for await (const message of ipam.stream(FOLLOW, { nodeName, sets }, signal)) {
        const change = view.apply(message);
        if (!change || signal.aborted) continue;
        isComplete = true;
        void acknowledgements.enforce(change, message);
        this.#found();
      }
      throw new Failure('UNREACHABLE', `${ipam.description}: the stream of policies ended`);
    } catch (error) {
      if (!isComplete) throw error;
      if (!signal.aborted) this.#lose(error);
    }
  }

  #found(): void {
    const { events, ipam } = this.#options;
    if (this.#lost) events.policiesFollowed(ipam.description);
    this.#lost = undefined;
  }

  #lose(error: unknown): void {
    const { events, ipam } = this.#options;
    if (!this.#lost) events.policiesLost(ipam.description, error);
    this.#lost = { error };
  }
}

/** Acknowledges the latest message of a stream that is in force. */
class Acknowledgements {
  readonly #options: PolicyClientOptions;
  readonly #signal: AbortSignal;
  #inForce: { readonly streamId: string; readonly number: bigint } | undefined;
  #isSending = false;

  constructor(options: PolicyClientOptions, signal: AbortSignal) {
    this.#options = options;
    this.#signal = signal;
  }

  /** Never throws: what fails is repeated, as the table is. */
  async enforce(change: ViewChange, { streamId, number }: FollowPoliciesResponse): Promise<void> {
    const { filter, clock } = this.#options;
    let pending = change;
    while (!this.#signal.aborted) {
      try {
        await filter.update(pending);
        if (number > (this.#inForce?.number ?? 0n)) this.#inForce = { streamId, number };
        await this.#send();
        return;
      } catch {
        // The table has the change already as a wanted one.
        pending = { sets: new Map(), hasPods: false };
        await clock.sleep(REPEAT_AFTER_MS, this.#signal);
      }
    }
  }

  async #send(): Promise<void> {
    if (this.#isSending) return;
    this.#isSending = true;
    const { self: nodeName, ipam, clock } = this.#options;
    let sent = 0n;
    for (let next = this.#inForce; next && next.number > sent && !this.#signal.aborted; next = this.#inForce) {
      sent = next.number;
      const limits = { deadlineMs: clock.nowMs() + ACKNOWLEDGE_TIMEOUT_MS, signal: this.#signal };
      // The next change is acknowledged with the ones before.
      await ipam.call(ACKNOWLEDGE, { nodeName, ...next }, limits).catch(() => undefined);
    }
    this.#isSending = false;
  }
}
