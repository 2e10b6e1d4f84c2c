import { utimes } from 'node:fs/promises';

import { codeOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';

/** How long a restart of this process may take before STATUS fails: as long as podwire-dataplane may be away. */
const LEASE_MS = 30_000;

const RENEWAL_MS = 5_000;

const MS_PER_SECOND = 1000;

export interface ReadyLeaseOptions {
  /** The file of the {@link ReadyMark}. */
  readonly path: string;
  /** Whether STATUS succeeds, and may do so without this process. */
  readonly isReady: () => boolean;
  readonly clock: Clock;
}

/**
 * Until when the shim may answer STATUS by itself while no plugin listens: the modification time of the file, in the future
 * while the node is ready (HoldsReadyLease, shim/src/ready_lease.cc). It is not given up when the process ends.
 */
export class ReadyLease {
  readonly #options: ReadyLeaseOptions;
  readonly #stopped = new AbortController();
  #running: Promise<void> = Promise.resolve();

  constructor(options: ReadyLeaseOptions) {
    this.#options = options;
  }

  start(): void {
    this.#running = this.#run();
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock } = this.#options;
    do await this.#renew();
    while ((await clock.sleep(RENEWAL_MS, this.#stopped.signal)) === 'elapsed');
  }

  async #renew(): Promise<void> {
    const { path, isReady, clock } = this.#options;
    const nowMs = clock.nowMs();
    const untilMs = isReady() ? nowMs + LEASE_MS : nowMs;
    try {
      await utimes(path, nowMs / MS_PER_SECOND, untilMs / MS_PER_SECOND);
    } catch (error) {
      // Before the node was ready there is no file; one that cannot be touched is a lease that ends.
      if (codeOf(error) === undefined) throw error;
    }
  }
}
