import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import { isRefusal } from './ipam-plugin.js';
import type { Delegate } from './mode.js';

/** How long a circuit stays open after a timeout, in milliseconds. The journal retries within that time and closes it. */
const OPEN_MS = 30_000;

/** When a call timed out, by the monotonic clock. */
interface Timeout {
  readonly atMs: number;
}

/**
 * Delegated IPAM plugins whose last call timed out. DEL leaves their addresses to the journal instead of waiting again; the
 * journal calls such a plugin once a round. Kept by network, as a plugin's back end depends on the network configuration.
 */
export class IpamCircuitBreaker {
  readonly #clock: Clock;
  readonly #timeouts = new Map<string, Map<string, Timeout>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Types of the plugins of a network whose circuit is open. */
  openFor(network: string): readonly string[] {
    const nowMs = this.#clock.monotonicMs();
    const timeouts = [...(this.#timeouts.get(network) ?? [])];
    return timeouts.flatMap(([type, { atMs }]) => (nowMs < atMs + OPEN_MS ? [type] : []));
  }

  /** Calls a plugin. Opens its circuit on a timeout, closes it on any answer. @throws what the call throws */
  async run(network: string, delegate: Delegate, call: () => Promise<unknown>): Promise<void> {
    try {
      await call();
      this.#close(network, delegate);
    } catch (error) {
      if (isTimeout(error, delegate)) this.#open(network, delegate);
      else if (isRefusal(error, delegate)) this.#close(network, delegate);
      throw error;
    }
  }

  #open(network: string, { type }: Delegate): void {
    const timeouts = this.#timeouts.get(network) ?? new Map<string, Timeout>();
    this.#timeouts.set(network, timeouts.set(type, { atMs: this.#clock.monotonicMs() }));
  }

  #close(network: string, { type }: Delegate): void {
    const timeouts = this.#timeouts.get(network);
    if (timeouts?.delete(type) && timeouts.size === 0) this.#timeouts.delete(network);
  }
}

/** Whether the call timed out. An answer with the retryable code 11 is not a timeout. */
function isTimeout(error: unknown, delegate: Delegate): boolean {
  return error instanceof Failure && error.code === 'DELEGATE_UNAVAILABLE' && !isRefusal(error, delegate);
}
