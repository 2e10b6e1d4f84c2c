import { context, propagation, SpanKind, trace, type HrTime, type Span } from '@opentelemetry/api';
import type { PodName } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withAttachment, type Logger } from '@podwire/shared/runtime/log';
import { commandContext } from '@podwire/shared/telemetry/instruments';
import { withRecorder } from '@podwire/shared/telemetry/intervals';
import { withRest } from '@podwire/shared/telemetry/phases';
import { markFailed, withSpan } from '@podwire/shared/telemetry/span';

import { COMMANDS, podOf } from './cni/environment.js';
import { Duration, isPast, type CommandEvents, type CommandName, type CutOff, type TimedCommand } from './events.js';
import type { RecentCommands } from './recent-commands.js';
import { ProcessStopping, Superseded } from './requests/attachment-queue.js';
import type { CniRequest, ContainerRequest } from './requests/request.js';

export interface ObserverOptions {
  readonly events: CommandEvents;
  readonly recent: RecentCommands;
  readonly timeoutMs: Readonly<Record<TimedCommand, number>>;
  readonly clock: Clock;
  readonly nodeName: string;
  readonly log: Logger;
  /** Called for each ADD of a Kubernetes pod that failed, unless its caller ended it. */
  readonly onFailedPod: OnFailedPod;
}

export type OnFailedPod = (pod: PodName, failure: { readonly code: string; readonly message: string }) => void;

/** How a command ended: with a result, if it has one, or with an error. */
export type Outcome = { readonly result: object | undefined } | { readonly error: unknown };

/** One command in flight as operators see it: its spans, its time, its log line, its metrics and its entry in the recent commands. */
export class ObservedCommand {
  readonly #command: CommandName;
  readonly #request: CniRequest;
  readonly #options: ObserverOptions;
  readonly #duration: Duration;
  /** The shim's span, if there is one, and the command's. */
  readonly #spans: Span[] = [];
  /** The container of an ADD, CHECK or DEL that is validated. */
  #container: ContainerRequest | undefined;

  constructor(request: CniRequest, options: ObserverOptions) {
    this.#command = COMMANDS.find((known) => known === request.variables.CNI_COMMAND) ?? 'unknown';
    this.#request = request;
    this.#options = options;
    this.#duration = new Duration(request, options.clock);
    options.events.started(this.#command);
  }

  /** Trace ID of the command's span; undefined without tracing. */
  get traceId(): string | undefined {
    const spanContext = this.#spans.at(-1)?.spanContext();
    return spanContext && trace.isSpanContextValid(spanContext) ? spanContext.traceId : undefined;
  }

  /**
   * Runs the command in its span, below the span of its shim, which lasts from the start of that process to the answer. The
   * shim has no span if its start is unknown, or if it ended earlier.
   */
  async run<Result>(work: () => Promise<Result>): Promise<Result> {
    const { startedNs, arrivedNs, isSpooled, traceContext } = this.#request;
    const caller = propagation.extract(commandContext(), traceContext);
    const runInSpan = () => this.#runInSpan(work);
    if (isSpooled || !isPast(startedNs, arrivedNs)) return context.with(caller, runInSpan);
    const options = { kind: SpanKind.CLIENT, startTime: hrTime(startedNs) };
    const shim = trace.getTracer('podwire').startSpan('podwire.shim', options, caller);
    this.#spans.push(shim);
    try {
      return await context.with(trace.setSpan(caller, shim), runInSpan);
    } finally {
      shim.end();
    }
  }

  #runInSpan<Result>(work: () => Promise<Result>): Promise<Result> {
    const run = (span: Span): Promise<Result> => {
      this.#spans.push(span);
      return context.with(withRecorder(context.active(), this.#duration.recorder), work);
    };
    return withSpan(`CNI ${this.#command}`, { 'cni.command': this.#command }, run, { kind: SpanKind.SERVER });
  }

  /** Adds the container of the validated command to the spans and the report. */
  setContainer(container: ContainerRequest): void {
    this.#container = container;
    const { attachment, pod } = container;
    for (const span of this.#spans) {
      span.setAttributes({
        'cni.network.name': attachment.network,
        'container.id': attachment.containerId,
        'network.interface.name': attachment.interfaceName,
      });
      if (pod) span.setAttributes({ 'k8s.namespace.name': pod.namespace, 'k8s.pod.name': pod.name });
      if (pod && pod.uid !== '') span.setAttribute('k8s.pod.uid', pod.uid);
    }
    if (this.#request.isSpooled) this.#spans.at(-1)?.setAttribute('podwire.spooled', true);
  }

  /** Ends the command: its time stands still. */
  end(): void {
    this.#duration.recorder.end();
  }

  /** Writes the log line, the metrics, the attributes of the spans, and the entry in the recent commands. */
  report(outcome: Outcome): void {
    const { events, recent, clock, nodeName } = this.#options;
    const [command, duration] = [this.#command, this.#duration];
    const isFailed = 'error' in outcome;
    const result = isFailed ? codeOf(outcome.error) : 'success';
    if (isFailed && command === 'ADD' && result !== 'CANCELLED')
      this.#reportFailedPod(result, messageOf(outcome.error));
    const addresses = isFailed || command !== 'ADD' ? [] : addressesOf(outcome.result);
    if (isFailed) this.#logFailure(outcome.error);
    else if (isTimed(command)) this.#log('info', {}, `${command} done`);
    events.ended(command, { result, duration, cutOff: this.#cutOff() });
    recent.add({
      startedMs: clock.nowMs() - duration.totalMs,
      command,
      request: this.#container,
      result,
      message: isFailed ? messageOf(outcome.error) : undefined,
      durationMs: duration.totalMs,
      addresses,
      traceId: this.traceId,
      intervals: withRest(duration.recorder.intervals(), duration.totalMs),
    });
    for (const span of this.#spans) {
      span.setAttributes({ 'podwire.result': result, 'k8s.node.name': nodeName });
      if (addresses.length > 0) span.setAttribute('podwire.addresses', addresses);
    }
  }

  #reportFailedPod(code: string, message: string): void {
    const pod = this.#container?.pod ?? podOf(this.#request.variables);
    if (pod) this.#options.onFailedPod(pod, { code, message });
  }

  #logFailure(error: unknown): void {
    const span = this.#spans.at(-1);
    if (span) markFailed(span, error);
    const level = codeOf(error) === 'INTERNAL' ? 'error' : 'warn';
    this.#log(level, { err: error }, `${this.#request.variables.CNI_COMMAND ?? 'command'} failed`);
  }

  #log(level: 'info' | 'warn' | 'error', fields: object, text: string): void {
    const container = this.#container;
    const write = (): Promise<void> => {
      this.#options.log[level]({ ...fields, ...this.#duration.fields(container?.pod) }, text);
      return Promise.resolve();
    };
    void (container ? withAttachment(container.attachment, write) : write());
  }

  #cutOff(): CutOff | undefined {
    const { signal } = this.#request.cancel;
    if (signal.reason instanceof Superseded) return 'superseded';
    if (signal.reason instanceof ProcessStopping) return 'stop';
    if (signal.aborted) return 'caller';
    const command = this.#command;
    const isLate = isTimed(command) && this.#duration.elapsedMs >= this.#options.timeoutMs[command];
    return isLate ? 'deadline' : undefined;
  }
}

function codeOf(error: unknown): string {
  return error instanceof Failure ? error.code : 'INTERNAL';
}

function isTimed(command: CommandName): command is TimedCommand {
  return command !== 'STATUS' && command !== 'VERSION' && command !== 'unknown';
}

/** The addresses of a CNI result, which has them as CIDRs in every version, without prefix length. */
function addressesOf(result: object | undefined): string[] {
  if (!result || !('ips' in result) || !Array.isArray(result.ips)) return [];
  return result.ips.flatMap((ip: { readonly address?: unknown }) =>
    typeof ip.address === 'string' ? [ip.address.split('/')[0] ?? ''] : [],
  );
}

const NS_PER_SECOND = 1_000_000_000n;

function hrTime(epochNs: bigint): HrTime {
  return [Number(epochNs / NS_PER_SECOND), Number(epochNs % NS_PER_SECOND)];
}
