import type { PodName } from '@podwire/shared/attachment/allocation';
import type { Clock } from '@podwire/shared/runtime/clock';
import { NS_PER_MS } from '@podwire/shared/runtime/wall-clock';
import { IntervalRecorder } from '@podwire/shared/telemetry/intervals';
import { timeByPhase, type Phase } from '@podwire/shared/telemetry/phases';
import { counter, histogram, upDownCounter } from '@podwire/shared/telemetry/instruments';

import type { Command } from './cni/environment.js';
import type { CniRequest } from './requests/request.js';

/** A command, or `unknown` for an invalid one. */
export type CommandName = Command | 'unknown';

/** Commands with a configurable timeout. STATUS has a fixed one; VERSION calls no service. */
export type TimedCommand = 'ADD' | 'CHECK' | 'DEL' | 'GC';

/** Why a command was cut off; values of the metric's label `reason`. */
export type CutOff = 'deadline' | 'caller' | 'superseded' | 'stop';

interface CommandEnd {
  /** `success`, or the failure's code. */
  readonly result: string;
  readonly duration: Duration;
  /** Cause of the cut; undefined if the command ended in time with its caller still connected. */
  readonly cutOff: CutOff | undefined;
}

const MS_PER_SECOND = 1000;

/** Metrics of commands. No label depends on a pod. */
export class CommandEvents {
  readonly #duration = histogram('podwire.plugin.command.duration');
  readonly #phase = histogram('podwire.plugin.command.phase.duration');
  readonly #failed = counter('podwire.plugin.commands.failed');
  readonly #cutOff = counter('podwire.plugin.commands.cut_off');
  readonly #inFlight = upDownCounter('podwire.plugin.commands.in_flight');

  started(command: CommandName): void {
    this.#inFlight.add(1, { command });
  }

  ended(command: CommandName, { result, duration, cutOff }: CommandEnd): void {
    this.#inFlight.add(-1, { command });
    this.#duration.record(duration.totalMs / MS_PER_SECOND, { command, result });
    const outcome = result === 'success' ? 'success' : 'failure';
    for (const [phase, durationMs] of duration.phases()) {
      this.#phase.record(durationMs / MS_PER_SECOND, { command, phase, result: outcome });
    }
    if (outcome === 'failure' && (command === 'ADD' || command === 'DEL')) {
      this.#failed.add(1, { command, reason: result });
    }
    if (cutOff) this.#cutOff.add(1, { command, reason: cutOff });
  }
}

/** The clocks of the shim and the plugin may differ by the rounding to a millisecond. */
const ROUNDING_NS = NS_PER_MS;

/** Whether the start of a shim is known, and not after the arrival of its request: the clock may have been set back. */
export function isPast(startedNs: bigint | undefined, arrivedNs: bigint): startedNs is bigint {
  return startedNs !== undefined && startedNs - arrivedNs < ROUNDING_NS;
}

/** Measures one command, for its last log line, the metrics and the list of recent commands. */
export class Duration {
  /** Its origin is the start of the shim, or the arrival of the request if that is unknown. */
  readonly recorder: IntervalRecorder;
  readonly #shimMs: number;
  #phases: ReadonlyMap<Phase, number> | undefined;

  constructor({ startedNs, arrivedNs }: Pick<CniRequest, 'startedNs' | 'arrivedNs'>, clock: Clock) {
    const isKnown = isPast(startedNs, arrivedNs);
    this.#shimMs = isKnown ? Math.max(0, Number(arrivedNs - startedNs) / Number(NS_PER_MS)) : 0;
    this.recorder = new IntervalRecorder(clock, this.#shimMs);
    if (isKnown) this.recorder.add('shim', 'shim', { startMs: 0, durationMs: this.#shimMs });
  }

  /** Time since the start, until the end or now, in milliseconds. */
  get totalMs(): number {
    return this.recorder.elapsedMs;
  }

  /** Part of this time in the plugin. */
  get elapsedMs(): number {
    return this.totalMs - this.#shimMs;
  }

  /** Milliseconds of each phase of the command, which ends with this call; they add up to the time since the start. */
  phases(): ReadonlyMap<Phase, number> {
    this.recorder.end();
    return (this.#phases ??= timeByPhase(this.recorder.intervals(), this.totalMs));
  }

  /**
   * Log fields of the command, which ends with this call, in milliseconds: the time since the start, and of that each phase.
   * @param pod - undefined for a container that is not a Kubernetes pod
   */
  fields(pod?: PodName): object {
    const phases = [...this.phases()].map(([phase, durationMs]) => [phase, roundToTenths(durationMs)] as const);
    return {
      elapsed_ms: roundToTenths(this.totalMs),
      ...(pod && { pod: `${pod.namespace}/${pod.name}` }),
      phases_ms: Object.fromEntries(phases),
    };
  }
}

function roundToTenths(value: number): number {
  return Math.round(value * 10) / 10;
}
