import { metrics } from '@opentelemetry/api';

import type { Command } from './cni/environment.js';
import type { Duration } from './duration.js';

/** A command, or what a caller sent in the place of one. */
export type CommandName = Command | 'unknown';

/** Who or what ended the wait for a command: its time, its caller, a DEL, or the end of the process. */
export type CutOff = 'deadline' | 'caller' | 'overtaken' | 'stop';

interface CommandEnd {
  /** `success`, or the failure's code. */
  readonly result: string;
  readonly duration: Duration;
  /** Undefined where it ended in its time, with somebody to answer to. */
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
