import {
  context,
  propagation,
  ROOT_CONTEXT,
  SpanKind,
  trace,
  type Context,
  type HrTime,
  type Span,
} from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withAttachment, type Logger } from '@podwire/shared/runtime/log';
import { markFailed, withSpan } from '@podwire/shared/telemetry/span';

import { statedVersion } from './cni/config.js';
import type { Limits } from './clients/clients.js';
import { COMMANDS, readCommand } from './cni/environment.js';
import { version } from './commands/status.js';
import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';
import {
  Duration,
  isPast,
  requireCompatibleShim,
  type CommandEvents,
  type CommandName,
  type CutOff,
} from './events.js';
import type { RecentCommands } from './recent-commands.js';
import { Superseded, type AttachmentQueue } from './requests/attachment-queue.js';
import type { OnceLogger } from './requests/once-logger.js';
import {
  ProcessStopping,
  readAttachRequest,
  readDelRequest,
  type AttachRequest,
  type CniRequest,
  type ContainerRequest,
  type DelRequest,
} from './requests/request.js';
import type { Spool } from './spool/spool.js';

/** Output and exit code of the shim. */
export interface CniAnswer {
  readonly exitCode: 0 | 1;
  /** The result, the error document, or nothing. */
  readonly stdout: string;
  /** Whether the stopping process cut the command off, so that the shim should call the next process. */
  readonly isForNextProcess?: boolean;
}

/** Commands with a configurable timeout. STATUS has a fixed one; VERSION calls no service. */
export type TimedCommand = 'ADD' | 'CHECK' | 'DEL' | 'GC';

/** What each command does, once its request is validated and it is its turn. */
export interface Commands {
  readonly add: (request: AttachRequest, limits: Limits) => Promise<object>;
  readonly check: (request: AttachRequest, limits: Limits) => Promise<undefined>;
  readonly del: (request: DelRequest, limits: Limits) => Promise<undefined>;
  readonly gc: (request: CniRequest, limits: Limits) => Promise<undefined>;
  readonly status: (request: CniRequest) => Promise<undefined>;
}

export interface RunOptions {
  readonly commands: Commands;
  readonly queue: AttachmentQueue;
  readonly spool: Pick<Spool, 'replayOf'>;
  /** Timeout of a command from its arrival, including the wait in the queue, in milliseconds. */
  readonly timeoutMs: Readonly<Record<TimedCommand, number>>;
  readonly clock: Clock;
  readonly onceLogger: OnceLogger;
  readonly events: CommandEvents;
  readonly recent: RecentCommands;
  readonly nodeName: string;
  readonly log: Logger;
}

/** One command in flight. */
interface Call extends RunOptions {
  readonly command: CommandName;
  readonly request: CniRequest;
  readonly span: Span;
  /** The command's span, after the shim's. */
  readonly spans: readonly Span[];
  readonly duration: Duration;
  /** Of a command of a container, once it is validated. */
  container: ContainerRequest | undefined;
}

/** The answer and the command's error, if any. */
interface Outcome {
  readonly answer: CniAnswer;
  /** `success`, or the failure's code. */
  readonly result: string;
  readonly error?: unknown;
  /** Of an ADD, without prefix length. */
  readonly addresses?: readonly string[];
}

/**
 * Runs one CNI command in its own span, and reports it. Never throws: a failure becomes a CNI error object.
 * @param send - called with the answer; its caller need not wait for the report
 */
export function run(
  request: CniRequest,
  options: RunOptions,
  send: (answer: CniAnswer) => void = () => undefined,
): Promise<CniAnswer> {
  const command = COMMANDS.find((known) => known === request.variables.CNI_COMMAND) ?? 'unknown';
  const caller = propagation.extract(ROOT_CONTEXT, request.traceContext);
  const duration = new Duration(request, options.clock);
  options.events.started(command);
  return inShimSpan(request, caller, (shim) =>
    withSpan(
      `CNI ${command}`,
      { 'cni.command': command },
      async (span) => {
        const spans = shim ? [shim, span] : [span];
        const call: Call = { command, request, span, spans, duration, container: undefined, ...options };
        const outcome = await outcomeOf(call);
        duration.end();
        const isForNext = isForNextProcess(outcome, request);
        const answer = isForNext ? { isForNextProcess: true, ...outcome.answer } : outcome.answer;
        send(answer);
        report(outcome, call);
        return answer;
      },
      { kind: SpanKind.SERVER },
    ),
  );
}

async function outcomeOf(call: Call): Promise<Outcome> {
  const { command } = call;
  try {
    const result = await dispatch(call);
    const stdout = result === undefined ? '' : `${JSON.stringify(result)}\n`;
    const addresses = command === 'ADD' ? addressesOf(result) : [];
    return { answer: { exitCode: 0, stdout }, result: 'success', addresses };
  } catch (error) {
    return fail(error, call);
  }
}

/** Validates the command and runs it in its turn. @returns the result, if the command has one. @throws Failure */
async function dispatch(call: Call): Promise<object | undefined> {
  const { request, commands, onceLogger } = call;
  const command = readCommand(request.variables);
  requireCompatibleShim(command, request, onceLogger);
  switch (command) {
    case 'ADD':
      return inTurn(command, readAttachRequest(command, request), commands.add, call);
    case 'CHECK':
      return inTurn(command, readAttachRequest(command, request), commands.check, call);
    case 'DEL':
      return inTurn(command, readDelRequest(request), commands.del, call);
    case 'GC':
      return commands.gc(request, limitsOf(command, call));
    case 'STATUS':
      return commands.status(request);
    case 'VERSION':
      return version(request);
  }
}

/** Runs a command of an attachment after the earlier ones of the attachment. */
function inTurn<Request extends ContainerRequest>(
  command: 'ADD' | 'CHECK' | 'DEL',
  container: Request,
  work: (request: Request, limits: Limits) => Promise<object | undefined>,
  call: Call,
): Promise<object | undefined> {
  const { queue, spool, span, spans, request, duration } = call;
  const { attachment } = container;
  call.container = container;
  for (const each of spans) setAttributes(each, container);
  if (request.isSpooled) span.setAttribute('podwire.spooled', true);
  const limits = limitsOf(command, call);
  const wait = duration.recorder.begin('attachment queue', 'queue');
  return withAttachment(attachment, async () => {
    try {
      const replay = command === 'ADD' ? spool.replayOf(attachment) : undefined;
      // Only then: an ADD otherwise enters the queue in its order of arrival.
      if (replay) await replay;
      const { startedNs, cancel } = request;
      return await queue.run({ command, attachment, startedNs, deadlineMs: limits.deadlineMs, cancel }, () => {
        duration.recorder.end(wait);
        return work(container, limits);
      });
    } finally {
      duration.recorder.end(wait);
    }
  });
}

function limitsOf(command: TimedCommand, { request, duration: { recorder }, clock, timeoutMs }: Call): Limits {
  return { deadlineMs: clock.nowMs() + timeoutMs[command], signal: request.cancel.signal, recorder };
}

function fail(error: unknown, call: Call): Outcome {
  const { request, span } = call;
  markFailed(span, error);
  const result = error instanceof Failure ? error.code : 'INTERNAL';
  const level = result === 'INTERNAL' ? 'error' : 'warn';
  logEnd(call, level, { err: error }, `${request.variables.CNI_COMMAND ?? 'command'} failed`);
  const document = cniErrorOf(error, {
    cniVersion: statedVersion(request.configuration) ?? OWN_VERSION,
    traceId: traceIdOf(span),
  });
  return { answer: { exitCode: 1, stdout: `${JSON.stringify(document)}\n` }, result, error };
}

function logEnd(call: Call, level: 'info' | 'warn' | 'error', fields: object, text: string): void {
  const { container, duration, log } = call;
  const write = (): Promise<void> => {
    log[level]({ ...fields, ...duration.fields(container?.pod) }, text);
    return Promise.resolve();
  };
  void (container ? withAttachment(container.attachment, write) : write());
}

/** The addresses of a CNI result, which has them as CIDRs in every version. */
function addressesOf(result: object | undefined): string[] {
  if (!result || !('ips' in result) || !Array.isArray(result.ips)) return [];
  return result.ips.flatMap((ip: { readonly address?: unknown }) =>
    typeof ip.address === 'string' ? [ip.address.split('/')[0] ?? ''] : [],
  );
}

/** The log line of a success, metrics, attributes of the spans, and the list of recent commands. */
function report({ result, error, addresses = [] }: Outcome, call: Call): void {
  const { command, container, span, spans, duration, clock, events, recent, nodeName } = call;
  if (result === 'success' && isTimed(command)) logEnd(call, 'info', {}, `${command} done`);
  events.ended(command, { result, duration, cutOff: cutOff(call) });
  const durationMs = duration.totalMs;
  recent.add({
    startedMs: clock.nowMs() - durationMs,
    command,
    request: container,
    result,
    message: error === undefined ? undefined : messageOf(error),
    durationMs,
    addresses,
    traceId: traceIdOf(span),
    intervals: duration.recorder.intervals(),
  });
  for (const each of spans) {
    each.setAttributes({ 'podwire.result': result, 'k8s.node.name': nodeName });
    if (addresses.length > 0) each.setAttribute('podwire.addresses', [...addresses]);
  }
}

function traceIdOf(span: Span): string | undefined {
  const spanContext = span.spanContext();
  return trace.isSpanContextValid(spanContext) ? spanContext.traceId : undefined;
}

/** Not for an ADD that a DEL superseded before: its pod is deleted. */
function isForNextProcess({ answer, error }: Outcome, { cancel }: CniRequest): boolean {
  return answer.exitCode !== 0 && (error instanceof ProcessStopping || cancel.signal.reason instanceof ProcessStopping);
}

function cutOff({ command, request, timeoutMs, duration }: Call): CutOff | undefined {
  const { signal } = request.cancel;
  if (signal.reason instanceof Superseded) return 'superseded';
  if (signal.reason instanceof ProcessStopping) return 'stop';
  if (signal.aborted) return 'caller';
  return isTimed(command) && duration.elapsedMs >= timeoutMs[command] ? 'deadline' : undefined;
}

function isTimed(command: CommandName): command is TimedCommand {
  return command !== 'STATUS' && command !== 'VERSION' && command !== 'unknown';
}

function setAttributes(span: Span, { attachment, pod }: ContainerRequest): void {
  span.setAttributes({
    'cni.network.name': attachment.network,
    'container.id': attachment.containerId,
    'network.interface.name': attachment.interfaceName,
  });
  if (!pod) return;
  span.setAttributes({ 'k8s.namespace.name': pod.namespace, 'k8s.pod.name': pod.name });
  if (pod.uid !== '') span.setAttribute('k8s.pod.uid', pod.uid);
}

/**
 * Runs a command in the span of its shim, from the start of that process to the answer; without one if the start is unknown, or
 * if the shim ended earlier.
 */
async function inShimSpan<Result>(
  { startedNs, arrivedNs, isSpooled }: CniRequest,
  caller: Context,
  work: (shim: Span | undefined) => Promise<Result>,
): Promise<Result> {
  if (isSpooled || !isPast(startedNs, arrivedNs)) return context.with(caller, () => work(undefined));
  const startTime = hrTime(startedNs);
  const span = trace.getTracer('podwire').startSpan('podwire.shim', { kind: SpanKind.CLIENT, startTime }, caller);
  try {
    return await context.with(trace.setSpan(caller, span), () => work(span));
  } finally {
    span.end();
  }
}

const NS_PER_SECOND = 1_000_000_000n;

function hrTime(epochNs: bigint): HrTime {
  return [Number(epochNs / NS_PER_SECOND), Number(epochNs % NS_PER_SECOND)];
}
