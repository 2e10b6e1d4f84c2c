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
import { withAttachment } from '@podwire/shared/runtime/log';
import { markFailed, withSpan } from '@podwire/shared/telemetry/span';

import { statedVersion } from './cni/config.js';
import { COMMANDS, readCommand, type Pod } from './cni/environment.js';
import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';
import { add } from './commands/add.js';
import { check } from './commands/check.js';
import type { CommandTools, Tools } from './commands/context.js';
import { del } from './commands/del.js';
import { gc } from './commands/gc.js';
import type { Readiness } from './commands/readiness.js';
import { status, version } from './commands/status.js';
import {
  Duration,
  isPast,
  requireCompatibleShim,
  type CommandEvents,
  type CommandName,
  type CutOff,
} from './events.js';
import type { RecentCommand, RecentCommands } from './recent-commands.js';
import { Superseded, type AttachmentQueue } from './requests/attachment-queue.js';
import {
  readDelRequest,
  readAttachRequest,
  ProcessStopping,
  type ContainerRequest,
  type CniRequest,
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

export interface RunOptions {
  readonly tools: Tools;
  readonly queue: AttachmentQueue;
  /** Timeout of a command from its arrival, including the wait in the queue, in milliseconds. */
  readonly timeoutMs: Readonly<Record<TimedCommand, number>>;
  readonly readiness: Readiness;
  readonly events: CommandEvents;
  readonly recent: RecentCommands;
  readonly spool: Pick<Spool, 'replayOf'>;
}

/** Commands with a configurable timeout. STATUS has a fixed one; VERSION calls no service. */
type TimedCommand = 'ADD' | 'CHECK' | 'DEL' | 'GC';

/** One command in flight. */
interface Call extends RunOptions {
  readonly request: CniRequest;
  readonly span: Span;
  /** The command's span, after the shim's. */
  readonly spans: readonly Span[];
  readonly duration: Duration;
}

/** The answer and the command's error, if any. */
interface Outcome {
  readonly answer: CniAnswer;
  readonly error?: unknown;
  /** Of a command of a container. */
  readonly request?: ContainerRequest;
  /** Of an ADD, without prefix length. */
  readonly addresses?: readonly string[];
}

/** Runs one CNI command in its own span. Never throws: a failure becomes a CNI error object. */
export function run(request: CniRequest, options: RunOptions): Promise<CniAnswer> {
  const command = COMMANDS.find((known) => known === request.variables.CNI_COMMAND) ?? 'unknown';
  const caller = propagation.extract(ROOT_CONTEXT, request.traceContext);
  const { events, tools, recent } = options;
  const duration = new Duration(request, tools.clock);
  events.started(command);
  return inShimSpan(request, caller, (shim) =>
    withSpan(
      `CNI ${command}`,
      { 'cni.command': command },
      async (span) => {
        const call = { request, span, spans: shim ? [shim, span] : [span], duration, ...options };
        const outcome = await dispatch(call).catch((error: unknown) => fail(error, call));
        const result = resultOf(outcome);
        events.ended(command, { result, duration, cutOff: cutOff(command, call) });
        recent.add(recentCommand(command, result, outcome, call));
        for (const each of call.spans) setOutcome(each, result, outcome, tools.nodeName);
        return isForNextProcess(outcome, request) ? { isForNextProcess: true, ...outcome.answer } : outcome.answer;
      },
      { kind: SpanKind.SERVER },
    ),
  );
}

async function dispatch(call: Call): Promise<Outcome> {
  const { request } = call;
  const command = readCommand(request.variables);
  requireCompatibleShim(command, request, call.tools.onceLogger);
  switch (command) {
    case 'ADD':
      return runAttachmentCommand({ command, request: readAttachRequest(command, request), work: add }, call);
    case 'CHECK':
      return runAttachmentCommand({ command, request: readAttachRequest(command, request), work: check }, call);
    case 'DEL':
      return runAttachmentCommand({ command, request: readDelRequest(request), work: del }, call);
    case 'GC':
      return runGc(call);
    case 'STATUS':
      await status(request, call.readiness);
      return success(undefined);
    case 'VERSION':
      return success(version(request));
  }
}

async function runGc({ request, tools, queue, timeoutMs, duration }: Call): Promise<Outcome> {
  const deadlineMs = tools.clock.nowMs() + timeoutMs.GC;
  const limits = { deadlineMs, signal: request.cancel.signal, recorder: duration.recorder };
  await gc(request, { limits, ...tools }, queue);
  tools.log.info(duration.fields(), 'GC done');
  return success(undefined);
}

interface AttachmentCommand<Request extends ContainerRequest> {
  readonly command: 'ADD' | 'CHECK' | 'DEL';
  readonly request: Request;
  readonly work: (request: Request, tools: CommandTools) => Promise<object | undefined>;
}

/** Runs a command of an attachment in its queue and logs its end. */
function runAttachmentCommand<Request extends ContainerRequest>(
  attachmentCommand: AttachmentCommand<Request>,
  call: Call,
): Promise<Outcome> {
  const { command, request, work } = attachmentCommand;
  const { tools, queue, timeoutMs, spans, duration, spool } = call;
  const { cancel, startedNs } = call.request;
  const { attachment, pod } = request;
  for (const span of spans) setAttributes(span, request);
  if (call.request.isSpooled) call.span.setAttribute('podwire.spooled', true);
  const deadlineMs = tools.clock.nowMs() + timeoutMs[command];
  const limits = { deadlineMs, signal: cancel.signal, recorder: duration.recorder };
  const wait = duration.recorder.begin('attachment queue', 'queue');
  return withAttachment(attachment, async () => {
    try {
      const replay = command === 'ADD' ? spool.replayOf(attachment) : undefined;
      // Only then: an ADD otherwise enters the queue in its order of arrival.
      if (replay) await replay;
      const queued = { command, attachment, startedNs, deadlineMs, cancel };
      const result = await queue.run(queued, () => {
        duration.recorder.end(wait);
        return work(request, { limits, ...tools });
      });
      tools.log.info(duration.fields(pod), `${command} done`);
      return { ...success(result), request, addresses: command === 'ADD' ? addressesOf(result) : [] };
    } catch (error) {
      duration.recorder.end(wait);
      return { ...fail(error, call, pod), request };
    }
  });
}

/** The addresses of a CNI result, which has them as CIDRs in every version. */
function addressesOf(result: object | undefined): string[] {
  if (!result || !('ips' in result) || !Array.isArray(result.ips)) return [];
  return result.ips.flatMap((ip: { readonly address?: unknown }) =>
    typeof ip.address === 'string' ? [ip.address.split('/')[0] ?? ''] : [],
  );
}

function recentCommand(command: CommandName, result: string, outcome: Outcome, call: Call): RecentCommand {
  const { span, duration, tools } = call;
  const { traceId } = span.spanContext();
  const durationMs = duration.recorder.elapsedMs;
  return {
    startedMs: tools.clock.nowMs() - durationMs,
    command,
    request: outcome.request,
    result,
    message: outcome.error === undefined ? undefined : messageOf(outcome.error),
    durationMs,
    addresses: outcome.addresses ?? [],
    traceId: trace.isSpanContextValid(span.spanContext()) ? traceId : undefined,
    intervals: duration.recorder.intervals(),
  };
}

function setOutcome(span: Span, result: string, { addresses = [] }: Outcome, nodeName: string): void {
  span.setAttributes({ 'podwire.result': result, 'k8s.node.name': nodeName });
  if (addresses.length > 0) span.setAttribute('podwire.addresses', [...addresses]);
}

function success(result: object | undefined): Outcome {
  return { answer: { exitCode: 0, stdout: result === undefined ? '' : `${JSON.stringify(result)}\n` } };
}

function fail(error: unknown, { request, span, tools, duration }: Call, pod?: Pod): Outcome {
  markFailed(span, error);
  const isDefect = !(error instanceof Failure) || error.code === 'INTERNAL';
  tools.log[isDefect ? 'error' : 'warn'](
    { err: error, ...duration.fields(pod) },
    `${request.variables.CNI_COMMAND ?? 'command'} failed`,
  );
  const { traceId } = span.spanContext();
  const document = cniErrorOf(error, {
    cniVersion: statedVersion(request.configuration) ?? OWN_VERSION,
    traceId: trace.isSpanContextValid(span.spanContext()) ? traceId : undefined,
  });
  return { answer: { exitCode: 1, stdout: `${JSON.stringify(document)}\n` }, error };
}

function resultOf({ answer, error }: Outcome): string {
  if (answer.exitCode === 0) return 'success';
  return error instanceof Failure ? error.code : 'INTERNAL';
}

/** Not for an ADD that a DEL superseded before: its pod is deleted. */
function isForNextProcess({ answer, error }: Outcome, { cancel }: CniRequest): boolean {
  return answer.exitCode !== 0 && (error instanceof ProcessStopping || cancel.signal.reason instanceof ProcessStopping);
}

function cutOff(command: CommandName, { request, timeoutMs, duration }: Call): CutOff | undefined {
  const { signal } = request.cancel;
  if (signal.reason instanceof Superseded) return 'overtaken';
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
