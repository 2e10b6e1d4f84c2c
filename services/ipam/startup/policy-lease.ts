import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { messageOf } from '@podwire/shared/failure/thrown';

import type { KubernetesApi } from '../api-server/api.js';
import { Leadership } from '../leadership/leadership.js';

export interface PolicyLeaseOptions {
  readonly api: KubernetesApi;
  readonly clock: Clock;
  readonly log: Logger;
  /** Name of this process among all podwire-ipam. */
  readonly identity: string;
}

const RETRY_MS = 10_000;

/**
 * Chooses one of several podwire-ipam on etcd, all of which serve addresses, to serve network policies: a node announces a pod to
 * one process, which must know all nodes that need it. The loser of the Lease ends its streams and waits for it again.
 */
export class PolicyLease {
  readonly #options: PolicyLeaseOptions;
  readonly #stop = new AbortController();
  readonly #reported = new Set<string>();
  #leadership: Leadership | undefined;
  #leader = '';
  #running: Promise<void> | undefined;

  constructor(options: PolicyLeaseOptions) {
    this.#options = options;
  }

  /** Starts; call once. */
  start(): void {
    this.#running = this.#run(this.#stop.signal);
  }

  /** Identity of the process that leads, as far as this one knows; empty: none is known. */
  get leader(): string {
    return this.#leader;
  }

  /** Fires when this process no longer leads; undefined: it does not lead. */
  get held(): AbortSignal | undefined {
    return this.#leadership?.isHeld ? this.#leadership.lost : undefined;
  }

  /** Gives the lease up. Idempotent. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#leadership?.release();
    await this.#running;
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const leadership = new Leadership({
        ...this.#options,
        report: (failure) => this.#report(failure),
        leaderObserved: (identity) => (this.#leader = identity),
      });
      try {
        await leadership.acquire(signal);
        this.#options.log.info('network policies: this podwire-ipam serves them');
        this.#reported.clear();
        this.#leadership = leadership;
        await ended(AbortSignal.any([leadership.lost, signal]));
      } catch (failure) {
        this.#report(failure);
        await this.#options.clock.sleep(RETRY_MS, signal);
      }
    }
  }

  /** Each failure is logged once until this process leads. */
  #report(failure: unknown): void {
    const text = messageOf(failure);
    if (this.#stop.signal.aborted || this.#reported.has(text)) return;
    this.#reported.add(text);
    this.#options.log.warn({ err: failure }, `network policies: the Lease cannot be read or written: ${text}`);
  }
}

function ended(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
