import { context, propagation, ROOT_CONTEXT, trace, type HrTime, type Span } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { withAttachment } from '@podwire/shared/runtime/log';
import { markFailed, withSpan } from '@podwire/shared/runtime/span';

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
import { Duration, requireNeighbouringShim, type CommandEvents, type CommandName, type CutOff } from './events.js';
import { Overtaken, type Turns } from './requests/attachment-queue.js';
import {
  readDelRequest,
  readPodRequest,
  Stopping,
  type AttachmentRequest,
  type CniRequest,
} from './requests/request.js';

/** What the plugin's executable prints on standard output, and how it exits. */
export interface CniAnswer {
  readonly exitCode: 0 | 1;
  /** The result, the error object, or nothing. */
  readonly stdout: string;
  /** Whether the end of the process cut it off, so that the next one can carry it out. */
  readonly isForNext?: boolean;
}

export interface RunOptions {
  readonly tools: Tools;
  readonly turns: Turns;
  /** Time for a command from its arrival, waiting for its turn included, in milliseconds. */
  readonly timeoutMs: Readonly<Record<TimedCommand, number>>;
  readonly readiness: Readiness;
  /** Told of each command. */
  readonly events: CommandEvents;
}

/** Commands with a configurable timeout; STATUS has a fixed one, and VERSION waits for nothing. */
type TimedCommand = 'ADD' | 'CHECK' | 'DEL' | 'GC';

/** One command on its way. */
interface Call extends RunOptions {
  readonly request: CniRequest;
  readonly span: Span;
  readonly duration: Duration;
}

/** An answer, and what the command failed with where it did. */
interface Ended {
  readonly answer: CniAnswer;
  readonly error?: unknown;
}

/** Runs one CNI command in its own span. Never throws: a failure becomes a CNI error object. */
export function run(request: CniRequest, options: RunOptions): Promise<CniAnswer> {
  const command = COMMANDS.find((known) => known === request.variables.CNI_COMMAND) ?? 'unknown';
  const caller = propagation.extract(ROOT_CONTEXT, request.traceContext);
  const { events, tools } = options;
  const duration = new Duration(request, tools.clock);
  events.begun(command);
  return context.with(caller, () =>
    withSpan(`CNI ${command}`, { 'cni.command': command }, async (span) => {
      recordShim(request);
      const call = { request, span, duration, ...options };
      const ended = await dispatch(call).catch((error: unknown) => refuse(error, call));
      events.ended(command, { result: resultOf(ended), duration, cutOff: cutOff(command, call) });
      return isForNext(ended, request) ? { isForNext: true, ...ended.answer } : ended.answer;
    }),
  );
}

async function dispatch(call: Call): Promise<Ended> {
  const { request } = call;
  const command = readCommand(request.variables);
  requireNeighbouringShim(command, request, call.tools.notices);
  switch (command) {
    case 'ADD':
      return attend({ command, request: readPodRequest(command, request), work: add }, call);
    case 'CHECK':
      return attend({ command, request: readPodRequest(command, request), work: check }, call);
    case 'DEL':
      return attend({ command, request: readDelRequest(request), work: del }, call);
    case 'GC':
      return collect(call);
    case 'STATUS':
      await status(request, call.readiness);
      return success(undefined);
    case 'VERSION':
      return success(version(request));
  }
}

async function collect({ request, tools, turns, timeoutMs, duration }: Call): Promise<Ended> {
  const deadlineMs = tools.clock.nowMs() + timeoutMs.GC;
  const limits = { deadlineMs, signal: request.cancel.signal, noteDuration: duration.noteService };
  await gc(request, { limits, ...tools }, turns);
  tools.log.info(duration.fields(), 'GC done');
  return success(undefined);
}

interface Job<Request extends AttachmentRequest> {
  readonly command: 'ADD' | 'CHECK' | 'DEL';
  readonly request: Request;
  readonly work: (request: Request, tools: CommandTools) => Promise<object | undefined>;
}

/** Carries out a command about an attachment when it is its turn, and logs its end. */
function attend<Request extends AttachmentRequest>(job: Job<Request>, call: Call): Promise<Ended> {
  const { command, request, work } = job;
  const { tools, turns, timeoutMs, span, duration } = call;
  const { cancel, startedNs } = call.request;
  const { attachment, pod } = request;
  describe(span, request);
  const deadlineMs = tools.clock.nowMs() + timeoutMs[command];
  const limits = { deadlineMs, signal: cancel.signal, noteDuration: duration.noteService };
  return withAttachment(attachment, async () => {
    try {
      const turn = { command, attachment, startedNs, deadlineMs, cancel };
      const result = await turns.take(turn, () => {
        duration.noteTurn();
        return work(request, { limits, ...tools });
      });
      tools.log.info(duration.fields(pod), `${command} done`);
      return success(result);
    } catch (error) {
      duration.noteTurn();
      return refuse(error, call, pod);
    }
  });
}

function success(result: object | undefined): Ended {
  return { answer: { exitCode: 0, stdout: result === undefined ? '' : `${JSON.stringify(result)}\n` } };
}

function refuse(error: unknown, { request, span, tools, duration }: Call, pod?: Pod): Ended {
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

function resultOf({ answer, error }: Ended): string {
  if (answer.exitCode === 0) return 'success';
  return error instanceof Failure ? error.code : 'INTERNAL';
}

/** An ADD that a DEL overtook before that is not: its pod is gone. */
function isForNext({ answer, error }: Ended, { cancel }: CniRequest): boolean {
  return answer.exitCode !== 0 && (error instanceof Stopping || cancel.signal.reason instanceof Stopping);
}

function cutOff(command: CommandName, { request, timeoutMs, duration }: Call): CutOff | undefined {
  const { signal } = request.cancel;
  if (signal.reason instanceof Overtaken) return 'overtaken';
  if (signal.reason instanceof Stopping) return 'stop';
  if (signal.aborted) return 'caller';
  return isTimed(command) && duration.elapsedMs >= timeoutMs[command] ? 'deadline' : undefined;
}

function isTimed(command: CommandName): command is TimedCommand {
  return command !== 'STATUS' && command !== 'VERSION' && command !== 'unknown';
}

function describe(span: Span, { attachment, pod }: AttachmentRequest): void {
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
 * The shim's share: from its start until its request arrived. The span begins before its parent, which is the resident's own
 * work, so that the trace holds both also where the runtime began none.
 */
function recordShim({ startedNs, arrivedNs }: CniRequest): void {
  if (startedNs === undefined || startedNs > arrivedNs) return;
  trace
    .getTracer('podwire')
    .startSpan('podwire.shim', { startTime: hrTime(startedNs) })
    .end(hrTime(arrivedNs));
}

const NS_PER_SECOND = 1_000_000_000n;

function hrTime(epochNs: bigint): HrTime {
  return [Number(epochNs / NS_PER_SECOND), Number(epochNs % NS_PER_SECOND)];
}
