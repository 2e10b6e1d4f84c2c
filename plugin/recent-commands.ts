import type { Interval } from '@podwire/shared/telemetry/phases';

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

/** Commands that concern no pod and come every few seconds. */
const OMITTED = ['STATUS', 'VERSION'];

/** The last commands of this node, with the intervals of each: for podwirectl, without a collector. */
export class RecentCommands {
  readonly #nodeName: string;
  /** Newest last. */
  readonly #commands: RecentCommand[] = [];

  constructor(nodeName: string) {
    this.#nodeName = nodeName;
  }

  add(command: RecentCommand): void {
    if (OMITTED.includes(command.command)) return;
    this.#commands.push(command);
    if (this.#commands.length > KEPT_COUNT) this.#commands.shift();
  }

  /**
   * The commands, newest first, as JSON: `{"node", "commands":[{"startedAt", "command", "pod":{"namespace","name","uid"},
   * "containerId", "network", "interface", "result", "message", "durationMs", "addresses", "traceId",
   * "intervals":[{"name","phase","startMs","durationMs","depth"}]}]}`. Fields without a value are absent.
   */
  text(): string {
    return `${JSON.stringify({ node: this.#nodeName, commands: this.#commands.map(describe).reverse() })}\n`;
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
