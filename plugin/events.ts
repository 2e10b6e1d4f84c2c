import { metrics } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { RELEASE, releaseFault } from '@podwire/shared/rpc/release';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ServiceMethod } from './clients/clients.js';
import type { Command, Pod } from './cni/environment.js';
import type { Notices } from './requests/once-logger.js';
import type { CniRequest } from './requests/request.js';

/** A command, or what a caller sent in the place of one. */
export type CommandName = Command | 'unknown';

/** Who or what ended the wait for a command: its time, its caller, a DEL, or the end of the process. */
export type CutOff = 'deadline' | 'caller' | 'overtaken' | 'stop';

interface CommandEnd {
  /** `success`, or the failure's code. */
  readonly result: string;
  readonly duration: Duration;
  /** Undefined if the command ended in time with its caller still connected. */
  readonly cutOff: CutOff | undefined;
}

const MS_PER_SECOND = 1000;

/** Upper ends of the histograms' buckets in seconds: from a STATUS that is known to the longest command that can be set. */
const BUCKETS_SECONDS = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60];

/** What commands took, for the metrics. Labels are the plugin's own words and names of programs; nothing of a pod is among them. */
export class CommandEvents {
  readonly #meter = metrics.getMeter('podwire-plugin');
  readonly #duration = this.#histogram(
    'command.duration',
    'Time of a command, from the start of the shim to the answer',
  );
  readonly #part = this.#histogram('command.part.duration', 'What a part of a command took of its time');
  readonly #cutOff = this.#meter.createCounter('podwire.plugin.commands.cut_off', {
    unit: '{command}',
    description:
      'Commands that took longer than their time, that their caller left, that a DEL overtook, or that the end of the process cut off',
  });
  readonly #underWay = this.#meter.createUpDownCounter('podwire.plugin.commands.under_way', {
    unit: '{command}',
    description: 'Commands that are not answered yet',
  });

  begun(command: CommandName): void {
    this.#underWay.add(1, { command });
  }

  ended(command: CommandName, { result, duration, cutOff }: CommandEnd): void {
    this.#underWay.add(-1, { command });
    this.#duration.record(duration.wholeMs / MS_PER_SECOND, { command, result });
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

/** One part of a command's time: the shim, the wait for the commands before, or a service. */
interface Part {
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

  /** The known parts, in milliseconds. Calls in parallel may add up to more than the whole. */
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

/**
 * Refuses a call by a shim that is too far from this release, before anything is done. STATUS says so, so that the node gets no pods. DEL
 * is carried out all the same, with a warning: what it needs is CNI's own, and a pod that cannot be deleted hangs.
 * @throws Failure RELEASE_MISMATCH, or NOT_READY for STATUS
 */
export function requireNeighbouringShim(
  command: Command,
  { shimRelease }: Pick<CniRequest, 'shimRelease'>,
  notices: Notices,
): void {
  const fault = releaseFault(RELEASE, shimRelease);
  if (fault === undefined || command === 'VERSION') return;
  const message = `podwire-plugin ${fault}: the caller is the shim in CNI_PATH, which "podwire install" of the plugin's release replaces`;
  if (command === 'DEL') {
    notices.distantShim(message);
    return;
  }
  throw new Failure(command === 'STATUS' ? 'NOT_READY' : 'RELEASE_MISMATCH', message);
}
