import { readFile, rename, writeFile } from 'node:fs/promises';

import { parseJson } from '@podwire/shared/json/parse';
import type { Interval } from '@podwire/shared/telemetry/phases';

import { z } from 'zod';

import type { ContainerRequest } from './requests/request.js';

/** One command that has ended. */
export interface RecentCommand {
  /** Start of the shim, in epoch milliseconds. */
  readonly startedMs: number;
  readonly command: string;
  /** Request; undefined for GC, and for an invalid command. */
  readonly request: Pick<ContainerRequest, 'attachment' | 'pod'> | undefined;
  /** `success`, or the failure's code. */
  readonly result: string;
  /** Message of the failure. */
  readonly message: string | undefined;
  readonly durationMs: number;
  /** Addresses of an ADD, without prefix length. */
  readonly addresses: readonly string[];
  readonly traceId: string | undefined;
  readonly intervals: readonly Interval[];
}

/** About 1 MB; a node of 110 pods that are all replaced. */
const KEPT_COUNT = 500;

const STORED = z.object({ commands: z.array(z.looseObject({})) });

/** Commands that concern no pod and come every few seconds. */
const OMITTED = ['STATUS', 'VERSION'];

/** The last commands of this node, with the intervals of each: for podwirectl, without a collector. */
export class RecentCommands {
  readonly #nodeName: string;
  /** Newest last. */
  readonly #commands: RecentCommand[] = [];
  /** Commands of earlier processes as {@link text} has them, newest first. */
  #earlier: readonly object[] = [];
  /** Whether a command was added since the last {@link store}. */
  #isChanged = false;

  constructor(nodeName: string) {
    this.#nodeName = nodeName;
  }

  add(command: RecentCommand): void {
    if (OMITTED.includes(command.command)) return;
    this.#isChanged = true;
    this.#commands.push(command);
    if (this.#commands.length > KEPT_COUNT) this.#commands.shift();
  }

  /**
   * The commands, newest first, as JSON: `{"node", "commands":[{"startedAt", "command", "pod":{"namespace","name","uid"},
   * "containerId", "network", "interface", "result", "message", "durationMs", "addresses", "traceId",
   * "intervals":[{"name","phase","startMs","durationMs","depth"}]}]}`. Fields without a value are absent.
   */
  text(): string {
    const commands = [...this.#commands.map(describe).reverse(), ...this.#earlier].slice(0, KEPT_COUNT);
    return `${JSON.stringify({ node: this.#nodeName, commands })}\n`;
  }

  /** Takes the commands of the process before. A file that is missing or cannot be read is none. */
  async load(path: string): Promise<void> {
    const stored = STORED.safeParse(parseJson(await readFile(path, 'utf8').catch(() => '')));
    if (stored.success) this.#earlier = stored.data.commands;
  }

  /** Writes the commands for the next process, if there are new ones. A failure loses them: they are for information only. */
  async store(path: string): Promise<void> {
    if (!this.#isChanged) return;
    this.#isChanged = false;
    await writeFile(`${path}.writing`, this.text(), { mode: 0o600 })
      .then(() => rename(`${path}.writing`, path))
      .catch(() => undefined);
  }
}

function describe({ startedMs, request, durationMs, intervals, ...rest }: RecentCommand): object {
  return {
    startedAt: new Date(startedMs).toISOString(),
    pod: request?.pod,
    containerId: request?.attachment.containerId,
    network: request?.attachment.network,
    interface: request?.attachment.interfaceName,
    durationMs: roundToMicroseconds(durationMs),
    ...rest,
    intervals: intervals.map((interval) => ({
      ...interval,
      startMs: roundToMicroseconds(interval.startMs),
      durationMs: roundToMicroseconds(interval.durationMs),
    })),
  };
}

function roundToMicroseconds(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
