import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import { isRefusal } from './ipam-plugin.js';
import type { Delegate } from './mode.js';

/** How long a plugin is considered hung, in milliseconds. The journal retries within that time and reports when it recovers. */
const REMEMBERED_MS = 30_000;

/** A moment that lies before this one, but for a clock that was set back. */
interface Hang {
  readonly sinceMs: number;
}

/**
 * Other IPAM plugins that lately let the time go by in which they were to take addresses back. Not each DEL is to wait for them: what they
 * hold is left to the journal at once, which asks one of them for all. Kept for each network, as they hang with what its configuration names.
 */
export class HangingPlugins {
  readonly #clock: Clock;
  readonly #hangs = new Map<string, Map<string, Hang>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Types of those of a network. */
  of(network: string): readonly string[] {
    const nowMs = this.#clock.nowMs();
    const hangs = [...(this.#hangs.get(network) ?? [])];
    return hangs.flatMap(([type, { sinceMs }]) => (sinceMs <= nowMs && nowMs < sinceMs + REMEMBERED_MS ? [type] : []));
  }

  /** Runs a call of a plugin, and notes whether it hung. @throws what the call throws */
  async watch(network: string, delegate: Delegate, call: () => Promise<unknown>): Promise<void> {
    try {
      await call();
      this.#forget(network, delegate);
    } catch (error) {
      if (isHang(error, delegate)) this.#remember(network, delegate);
      else if (isRefusal(error, delegate)) this.#forget(network, delegate);
      throw error;
    }
  }

  #remember(network: string, { type }: Delegate): void {
    const hangs = this.#hangs.get(network) ?? new Map<string, Hang>();
    this.#hangs.set(network, hangs.set(type, { sinceMs: this.#clock.nowMs() }));
  }

  #forget(network: string, { type }: Delegate): void {
    const hangs = this.#hangs.get(network);
    if (hangs?.delete(type) && hangs.size === 0) this.#hangs.delete(network);
  }
}

/** Whether the call timed out. An answer that asks to retry later is not a hang. */
function isHang(error: unknown, delegate: Delegate): boolean {
  return error instanceof Failure && error.code === 'DELEGATE_UNAVAILABLE' && !isRefusal(error, delegate);
}
