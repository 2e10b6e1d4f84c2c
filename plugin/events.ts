import { metrics } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { RELEASE, releaseFault } from '@podwire/shared/rpc/release';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ServiceMethod } from './clients/clients.js';
import type { Command, Pod } from './cni/environment.js';
import type { OnceLogger } from './requests/once-logger.js';
import type { CniRequest } from './requests/request.js';

/** A command, or `unknown` for an invalid one. */
export type CommandName = Command | 'unknown';

/** Why a command was cut off; values of the metric's label `reason`. */
export type CutOff = 'deadline' | 'caller' | 'overtaken' | 'stop';

interface CommandEnd {
  /** `success`, or the failure's code. */
  readonly result: string;
  readonly duration: Duration;
  /** Undefined if the command ended in time with its caller still connected. */
  readonly cutOff: CutOff | undefined;
}

const MS_PER_SECOND = 1000;

/** Upper bounds of the histogram buckets, in seconds: from a cached STATUS to the longest configurable command. */
const BUCKETS_SECONDS = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60];

/** Metrics of commands. No label depends on a pod. */
export class CommandEvents {
  readonly #meter = metrics.getMeter('podwire-plugin');
  readonly #duration = this.#histogram(
    'command.duration',
    'Time of a command, from the start of the shim to the answer',
  );
  readonly #part = this.#histogram('command.part.duration', 'Time of a part of a command');
  readonly #cutOff = this.#meter.createCounter('podwire.plugin.commands.cut_off', {
    unit: '{command}',
    description:
      'Commands that were cut off: past the deadline, caller disconnected, superseded by a DEL, or process stopping',
  });
  readonly #inFlight = this.#meter.createUpDownCounter('podwire.plugin.commands.under_way', {
    unit: '{command}',
    description: 'Commands in flight',
  });

  started(command: CommandName): void {
    this.#inFlight.add(1, { command });
  }

  ended(command: CommandName, { result, duration, cutOff }: CommandEnd): void {
    this.#inFlight.add(-1, { command });
    this.#duration.record(duration.totalMs / MS_PER_SECOND, { command, result });
    for (const { name, durationMs } of duration.parts()) {
      this.#part.record(durationMs / MS_PER_SECOND, { command, part: name });
    }
    if (cutOff) this.#cutOff.add(1, { command, reason: cutOff });
  }

  #histogram(name: string, description: string) {
    const advice = { explicitBucketBoundaries: BUCKETS_SECONDS };
    return this.#meter.createHistogram(`podwire.plugin.${name}`, { unit: 's', description, advice });
  }
}

const NS_PER_MS = 1_000_000;

/** One part of a command's time: the shim, the wait in the queue, or a service. */
interface Part {
  readonly name: string;
  readonly durationMs: number;
}

/** Measures one command, for its last log line and for the metrics. */
export class Duration {
  readonly #clock: Clock;
  readonly #startMs: number;
  readonly #shimMs: number | undefined;
  readonly #methodsMs: Record<string, number> = {};
  readonly #servicesMs = new Map<string, number>();
  #queuedMs: number | undefined;

  constructor({ startedNs, arrivedNs }: Pick<CniRequest, 'startedNs' | 'arrivedNs'>, clock: Clock) {
    this.#clock = clock;
    this.#startMs = clock.nowMs();
    const isKnown = startedNs !== undefined && startedNs <= arrivedNs;
    this.#shimMs = isKnown ? Number(arrivedNs - startedNs) / NS_PER_MS : undefined;
  }

  /** Time in the plugin until now, in milliseconds. */
  get elapsedMs(): number {
    return Math.max(0, this.#clock.nowMs() - this.#startMs);
  }

  /** Time since the shim started, or since the request arrived if that is unknown; in milliseconds. */
  get totalMs(): number {
    return (this.#shimMs ?? 0) + this.elapsedMs;
  }

  /** The wait in the queue is over. Only the first call counts. */
  noteQueueWait(): void {
    this.#queuedMs ??= this.elapsedMs;
  }

  readonly noteService = ({ service, method }: ServiceMethod, durationMs: number): void => {
    this.#methodsMs[method] = (this.#methodsMs[method] ?? 0) + durationMs;
    this.#servicesMs.set(service, (this.#servicesMs.get(service) ?? 0) + durationMs);
  };

  /** The known parts. Parallel calls may add up to more than the total. */
  parts(): readonly Part[] {
    const parts = [...this.#servicesMs].map(([name, durationMs]) => ({ name, durationMs }));
    if (this.#queuedMs !== undefined) parts.push({ name: 'turn', durationMs: this.#queuedMs });
    if (this.#shimMs !== undefined) parts.push({ name: 'shim', durationMs: this.#shimMs });
    return parts;
  }

  /**
   * Log fields, in milliseconds: time in the plugin, of that the wait in the queue and each service method, and the shim's time.
   * @param pod - undefined for a container that is not a Kubernetes pod
   */
  fields(pod?: Pod): object {
    return {
      elapsed_ms: this.elapsedMs,
      ...(pod && { pod: `${pod.namespace}/${pod.name}` }),
      ...(this.#shimMs !== undefined && { shim_ms: Math.floor(this.#shimMs) }),
      ...(this.#queuedMs !== undefined && { waited_ms: this.#queuedMs }),
      ...(Object.keys(this.#methodsMs).length > 0 && { services_ms: this.#methodsMs }),
    };
  }
}

/**
 * Rejects a call of a shim of an incompatible release. STATUS fails with NOT_READY, so that the node gets no pods. DEL is
 * accepted with a warning: it needs only standard CNI input, and its pod could not be deleted otherwise.
 * @throws Failure RELEASE_MISMATCH, or NOT_READY for STATUS
 */
export function requireCompatibleShim(
  command: Command,
  { shimRelease }: Pick<CniRequest, 'shimRelease'>,
  onceLogger: OnceLogger,
): void {
  const fault = releaseFault(RELEASE, shimRelease);
  if (fault === undefined || command === 'VERSION') return;
  const message = `podwire-plugin ${fault}: the caller is the shim in CNI_PATH; replace it with "podwire install" of the plugin's release`;
  if (command === 'DEL') {
    onceLogger.warnShimRelease(message);
    return;
  }
  throw new Failure(command === 'STATUS' ? 'NOT_READY' : 'RELEASE_MISMATCH', message);
}
