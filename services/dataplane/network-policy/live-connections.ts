import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { isAllowed, type Connection, type SetLookup } from '@podwire/shared/network-policy/evaluate';
import type { Direction, Profile } from '@podwire/shared/network-policy/policy';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Condition } from '../conditions/conditions.js';
import type { ViewChange } from './policy-view.js';

/** The profiles of a pod; `isolated`: every connection of the direction ends; undefined: no policy restricts it. */
export interface JudgedPod extends Readonly<Record<Direction, Profile | 'isolated' | undefined>> {
  readonly addresses: readonly Address[];
}

/** Connection tracking of the node. */
export interface ConnectionKernel {
  /** Addresses of the node's own interfaces. @throws Failure KERNEL_REFUSED */
  nodeAddresses(): Promise<readonly Address[]>;

  /**
   * Deletes the forbidden ones of the connections with an end among these addresses, until the signal fires. The ends are as in
   * {@link Connection}. It reads everything that the kernel tracks: 0.2 s with 100,000 connections.
   * @returns their number
   * @throws Failure KERNEL_REFUSED or KERNEL_UNSUPPORTED
   */
  endForbidden(
    addresses: readonly Address[],
    isForbidden: (connection: Connection) => boolean,
    signal: AbortSignal,
  ): Promise<number>;
}

/** Receives the events of live connections. */
export interface ConnectionEvents {
  connectionsEnded(count: number): void;
  /** The connections of some pods could not be judged; that is repeated. */
  connectionsNotJudged(error: unknown): void;
}

interface LiveConnectionsOptions {
  readonly kernel: ConnectionKernel;
  /** The pods by their interfaces, as the latest policies require. */
  readonly pods: () => ReadonlyMap<string, JudgedPod>;
  readonly sets: SetLookup;
  readonly events: ConnectionEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

/** Combines the changes of a burst. A packet that the old rules let pass has its entry by then. */
const DELAY_MS = 100;

/** A run is followed by a rest of this many times its duration. */
const REST_FACTOR = 9;

const RETRY = { baseMs: 500, maxMs: 30_000 };

/**
 * Ends connections that a change has forbidden: the kernel forgets them, and the table judges their next packets as new ones.
 * Connections that remain allowed keep their entries, and with them their translation.
 */
export class LiveConnections {
  readonly #options: LiveConnectionsOptions;
  readonly #queue: WorkQueue<'judge'>;
  /** Interfaces of the pods to judge. */
  readonly #requested = new Set<string>();
  /** Addresses of pods that are gone, by their texts. */
  readonly #left = new Map<string, Address>();
  #restUntilMs = 0;
  #failure: { readonly error: unknown } | undefined;

  constructor(options: LiveConnectionsOptions) {
    const { clock, random } = options;
    this.#options = options;
    this.#queue = new WorkQueue({
      reconcile: (_, signal) => this.#judge(signal),
      retryInMs: exponentialBackoff(RETRY, random),
      onFailure: (error) => this.#fail(error),
      clock,
    });
  }

  /** Judges the connections of pods soon. Call it when the change is in force in the kernel. */
  request(devices: Iterable<string>): void {
    for (const device of devices) this.#requested.add(device);
    if (this.#requested.size > 0) this.#queue.request('judge', DELAY_MS);
  }

  /** Ends all connections of a pod that is gone soon, as another pod may get its addresses. */
  leave(addresses: readonly Address[]): void {
    for (const each of addresses) this.#left.set(formatAddress(each), each);
    this.#queue.request('judge', DELAY_MS);
  }

  /** These addresses have a pod, whose connections are judged. */
  take(addresses: readonly Address[]): void {
    for (const each of addresses) this.#left.delete(formatAddress(each));
  }

  conditions(): readonly Condition[] {
    if (!this.#failure) return [];
    const { error } = this.#failure;
    const reason = error instanceof Failure ? error.message : 'internal error';
    const message = `open connections that network policies forbid cannot be ended, and go on: ${reason}`;
    return [{ reason: 'ConnectionsNotJudged', message }];
  }

  /** Idempotent. After a restart the first snapshot causes a judgement of all pods. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }

  async #judge(signal: AbortSignal): Promise<NextRun | undefined> {
    const { kernel, pods: listPods, sets, events, clock } = this.#options;
    const startMs = clock.monotonicMs();
    if (startMs < this.#restUntilMs) return { inMs: this.#restUntilMs - startMs };
    const [devices, left, pods] = [[...this.#requested], new Map(this.#left), listPods()];
    this.#requested.clear();
    try {
      const restricted = devices.flatMap((device) => pods.get(device) ?? []).filter(isRestricted);
      if (restricted.length + left.size > 0) {
        const judge = new ConnectionJudge([...pods.values()], await kernel.nodeAddresses(), sets);
        const addresses = [...left.values(), ...restricted.flatMap((pod) => pod.addresses)];
        // A pod may have got a left address meanwhile.
        const isLeft = (address: Address) => this.#left.has(formatAddress(address));
        const isForbidden = (each: Connection) =>
          isLeft(each.source) || isLeft(each.destination) || judge.isForbidden(each);
        const count = await kernel.endForbidden(addresses, isForbidden, signal);
        if (count > 0) events.connectionsEnded(count);
      }
      for (const [text, each] of left) if (this.#left.get(text) === each) this.#left.delete(text);
      this.#failure = undefined;
      return undefined;
    } catch (error) {
      for (const device of devices) this.#requested.add(device);
      throw error;
    } finally {
      const endMs = clock.monotonicMs();
      this.#restUntilMs = endMs + REST_FACTOR * (endMs - startMs);
    }
  }

  #fail(error: unknown): void {
    if (!this.#failure) this.#options.events.connectionsNotJudged(error);
    this.#failure = { error };
  }
}

/** Judges connections that passed the hook `forward`, as the table judges their first packet. */
class ConnectionJudge {
  readonly #pods: ReadonlyMap<string, JudgedPod>;
  readonly #nodeAddresses: ReadonlySet<string>;
  readonly #sets: SetLookup;

  constructor(pods: readonly JudgedPod[], nodeAddresses: readonly Address[], sets: SetLookup) {
    this.#pods = new Map(pods.flatMap((pod) => pod.addresses.map((address) => [formatAddress(address), pod])));
    this.#nodeAddresses = new Set(nodeAddresses.map(formatAddress));
    this.#sets = sets;
  }

  isForbidden(connection: Connection): boolean {
    const { source, destination } = connection;
    const [from, to] = [source, destination].map((address) => this.#pods.get(formatAddress(address)));
    // A pod's connections to itself, and the node's own ones, pass without a judgement.
    if (from === to || this.#isNode(source) || this.#isNode(destination)) return false;
    const [egress, ingress] = [from?.egress, to?.ingress];
    if (egress === 'isolated' || ingress === 'isolated') return true;
    return !isAllowed({ egress, ingress }, connection, this.#sets);
  }

  #isNode(address: Address): boolean {
    return isLoopback(address) || this.#nodeAddresses.has(formatAddress(address));
  }
}

/** The node has all addresses of 127.0.0.0/8, and lists one. */
function isLoopback({ family, value }: Address): boolean {
  return family === 4 && value >> 24n === 127n;
}

function isRestricted({ ingress, egress }: JudgedPod): boolean {
  return ingress !== undefined || egress !== undefined;
}

/** Whether changes of sets may forbid a connection that a profile allowed. */
export function mayForbid({ admin, rules, baseline }: Profile, changes: ViewChange['sets']): boolean {
  return [...admin, ...rules, ...baseline].some(({ action, peers, ports }) =>
    [...(peers?.sets ?? []), ...(ports?.sets ?? [])].some((id) => {
      const { added = [], deleted = [] } = changes.get(id) ?? {};
      return deleted.length > 0 || (action !== 'accept' && added.length > 0);
    }),
  );
}
