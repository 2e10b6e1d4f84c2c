import type { Clock } from '@podwire/shared/runtime/clock';

import type { Pod } from './cni/args.js';
import type { CniRequest } from './request.js';

const NS_PER_MS = 1_000_000n;

/** Where the time of one command went, as its last line of log tells it. */
export class Duration {
  readonly #request: Pick<CniRequest, 'startedNs' | 'arrivedNs'>;
  readonly #pod: Pod | undefined;
  readonly #clock: Clock;
  readonly #begunMs: number;
  readonly #servicesMs: Record<string, number> = {};
  #waitedMs = 0;

  /** @param pod - undefined for a container that is no pod of Kubernetes */
  constructor(request: Pick<CniRequest, 'startedNs' | 'arrivedNs'>, pod: Pod | undefined, clock: Clock) {
    this.#request = request;
    this.#pod = pod;
    this.#clock = clock;
    this.#begunMs = clock.nowMs();
  }

  /** The commands of the attachment that came before have ended. */
  noteTurn(): void {
    this.#waitedMs = this.#clock.nowMs() - this.#begunMs;
  }

  readonly noteService = (method: string, durationMs: number): void => {
    this.#servicesMs[method] = (this.#servicesMs[method] ?? 0) + durationMs;
  };

  /** In milliseconds: all of it in the plugin, and of that the wait for its turn and each service's method; the shim's before it. */
  fields(): object {
    const { startedNs, arrivedNs } = this.#request;
    return {
      elapsed_ms: this.#clock.nowMs() - this.#begunMs,
      ...(this.#pod && { pod: `${this.#pod.namespace}/${this.#pod.name}` }),
      ...(startedNs !== undefined &&
        startedNs <= arrivedNs && { shim_ms: Number((arrivedNs - startedNs) / NS_PER_MS) }),
      waited_ms: this.#waitedMs,
      ...(Object.keys(this.#servicesMs).length > 0 && { services_ms: this.#servicesMs }),
    };
  }
}
