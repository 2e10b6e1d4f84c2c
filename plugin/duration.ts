import type { Clock } from '@podwire/shared/runtime/clock';

import type { ServiceMethod } from './clients/clients.js';
import type { Pod } from './cni/args.js';
import type { CniRequest } from './requests/request.js';

const NS_PER_MS = 1_000_000;

/** One part of a command's time: the shim, the wait for the commands before, or a service. */
export interface Part {
  readonly name: string;
  readonly durationMs: number;
}

/** Where the time of one command goes, for its last line of log and for the metrics. */
export class Duration {
  readonly #clock: Clock;
  readonly #begunMs: number;
  readonly #shimMs: number | undefined;
  readonly #methodsMs: Record<string, number> = {};
  readonly #servicesMs = new Map<string, number>();
  #waitedMs: number | undefined;

  /** Begins now. */
  constructor({ startedNs, arrivedNs }: Pick<CniRequest, 'startedNs' | 'arrivedNs'>, clock: Clock) {
    this.#clock = clock;
    this.#begunMs = clock.nowMs();
    const isKnown = startedNs !== undefined && startedNs <= arrivedNs;
    this.#shimMs = isKnown ? Number(arrivedNs - startedNs) / NS_PER_MS : undefined;
  }

  /** In the plugin until now, in milliseconds. */
  get elapsedMs(): number {
    return Math.max(0, this.#clock.nowMs() - this.#begunMs);
  }

  /** Since the shim was started, or the request arrived where that is not known; in milliseconds. */
  get wholeMs(): number {
    return (this.#shimMs ?? 0) + this.elapsedMs;
  }

  /** The commands of the attachment that came before have ended, or were waited for in vain. Counts the first time. */
  noteTurn(): void {
    this.#waitedMs ??= this.elapsedMs;
  }

  readonly noteService = ({ service, method }: ServiceMethod, durationMs: number): void => {
    this.#methodsMs[method] = (this.#methodsMs[method] ?? 0) + durationMs;
    this.#servicesMs.set(service, (this.#servicesMs.get(service) ?? 0) + durationMs);
  };

  /** What is known of the whole, in milliseconds. Services that are asked at the same time may be more than it together. */
  parts(): readonly Part[] {
    const parts = [...this.#servicesMs].map(([name, durationMs]) => ({ name, durationMs }));
    if (this.#waitedMs !== undefined) parts.push({ name: 'turn', durationMs: this.#waitedMs });
    if (this.#shimMs !== undefined) parts.push({ name: 'shim', durationMs: this.#shimMs });
    return parts;
  }

  /**
   * In milliseconds: all of it in the plugin, and of that the wait for its turn and each service's method; the shim's before it.
   * @param pod - undefined for a container that is no pod of Kubernetes
   */
  fields(pod?: Pod): object {
    return {
      elapsed_ms: this.elapsedMs,
      ...(pod && { pod: `${pod.namespace}/${pod.name}` }),
      ...(this.#shimMs !== undefined && { shim_ms: Math.floor(this.#shimMs) }),
      ...(this.#waitedMs !== undefined && { waited_ms: this.#waitedMs }),
      ...(Object.keys(this.#methodsMs).length > 0 && { services_ms: this.#methodsMs }),
    };
  }
}
