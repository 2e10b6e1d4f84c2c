import { Failure } from '@podwire/shared/failure/failure';
import { RELEASE, releaseFault } from '@podwire/shared/rpc/release';
import { withAttachment } from '@podwire/shared/runtime/log';
import { recordInterval } from '@podwire/shared/telemetry/intervals';

import { statedVersion } from './cni/config.js';
import type { Limits } from './clients/clients.js';
import { readCommand, type Command } from './cni/environment.js';
import { version } from './commands/status.js';
import { cniErrorOf } from './cni/error.js';
import { OWN_VERSION } from './cni/version.js';
import type { TimedCommand } from './events.js';
import { ObservedCommand, type ObserverOptions, type Outcome } from './observed-command.js';
import { ProcessStopping, type AttachmentQueue } from './requests/attachment-queue.js';
import type { OnceLogger } from './requests/once-logger.js';
import {
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

/** Handler of each command, once its request is validated and it is its turn. */
export interface Commands {
  readonly add: (request: AttachRequest, limits: Limits) => Promise<object>;
  readonly check: (request: AttachRequest, limits: Limits) => Promise<undefined>;
  readonly del: (request: DelRequest, limits: Limits) => Promise<undefined>;
  readonly gc: (request: CniRequest, limits: Limits) => Promise<undefined>;
  readonly status: (request: CniRequest) => Promise<undefined>;
}

export interface RunOptions extends ObserverOptions {
  readonly commands: Commands;
  readonly queue: AttachmentQueue;
  readonly spool: Pick<Spool, 'replayOf'>;
  /** Timeout of a command from its arrival, including the wait in the queue, in milliseconds. */
  readonly timeoutMs: Readonly<Record<TimedCommand, number>>;
  readonly onceLogger: OnceLogger;
}

/** One command in flight. */
interface Call extends RunOptions {
  readonly request: CniRequest;
  readonly observed: ObservedCommand;
}

/**
 * Runs one CNI command, and reports it. Never throws: a failure becomes a CNI error object.
 * @param send - called with the answer; its caller need not wait for the report
 */
export function run(
  request: CniRequest,
  options: RunOptions,
  send: (answer: CniAnswer) => void = () => undefined,
): Promise<CniAnswer> {
  const observed = new ObservedCommand(request, options);
  const call: Call = { request, observed, ...options };
  return observed.run(async () => {
    const outcome = await outcomeOf(call);
    observed.end();
    send(outcome.answer);
    observed.report(outcome);
    return outcome.answer;
  });
}

async function outcomeOf(call: Call): Promise<Outcome & { readonly answer: CniAnswer }> {
  try {
    const result = await dispatch(call);
    const stdout = result === undefined ? '' : `${JSON.stringify(result)}\n`;
    return { result, answer: { exitCode: 0, stdout } };
  } catch (error) {
    return { error, answer: errorAnswer(error, call) };
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

/**
 * Rejects a call of a shim of an incompatible release. STATUS fails with NOT_READY, so that the node gets no pods. DEL is
 * accepted with a warning: it needs only standard CNI input, and its pod could not be deleted otherwise.
 * @throws Failure RELEASE_MISMATCH, or NOT_READY for STATUS
 */
function requireCompatibleShim(
  command: Command,
  { shimRelease }: Pick<CniRequest, 'shimRelease'>,
  onceLogger: OnceLogger,
): void {
  const fault = releaseFault(RELEASE, shimRelease);
  if (fault === undefined || command === 'VERSION') return;
  const message = `podwire-node ${fault}: the caller is the shim in CNI_PATH; replace it with "podwire install" of the plugin's release`;
  if (command === 'DEL') {
    onceLogger.warnShimRelease(message);
    return;
  }
  throw new Failure(command === 'STATUS' ? 'NOT_READY' : 'RELEASE_MISMATCH', message);
}

/** Runs a command of an attachment after the earlier ones of the attachment. */
function inTurn<Request extends ContainerRequest>(
  command: 'ADD' | 'CHECK' | 'DEL',
  container: Request,
  work: (request: Request, limits: Limits) => Promise<object | undefined>,
  call: Call,
): Promise<object | undefined> {
  const { queue, spool, observed } = call;
  const { attachment } = container;
  const { startedNs, cancel } = call.request;
  observed.setContainer(container);
  const limits = limitsOf(command, call);
  return withAttachment(attachment, async () => {
    const replay = command === 'ADD' ? spool.replayOf(attachment) : undefined;
    // Only then: an ADD otherwise enters the queue in its order of arrival.
    if (replay) await recordInterval('spooled DEL', 'queue', () => replay);
    const queued = { command, attachment, startedNs, deadlineMs: limits.deadlineMs, cancel };
    return queue.run(queued, () => work(container, limits));
  });
}

function limitsOf(command: TimedCommand, { request, clock, timeoutMs }: Call): Limits {
  return { deadlineMs: clock.nowMs() + timeoutMs[command], signal: request.cancel.signal };
}

function errorAnswer(error: unknown, { request, observed: { traceId } }: Call): CniAnswer {
  const cniVersion = statedVersion(request.configuration) ?? OWN_VERSION;
  const stdout = `${JSON.stringify(cniErrorOf(error, { cniVersion, traceId }))}\n`;
  // Not for an ADD that a DEL superseded before: its pod is deleted.
  const isForNextProcess = [error, request.cancel.signal.reason].some((cause) => cause instanceof ProcessStopping);
  return { exitCode: 1, stdout, ...(isForNextProcess && { isForNextProcess }) };
}
