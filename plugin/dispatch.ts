import type { Clock } from '@podwire/shared/runtime/clock';
import { withAttachment } from '@podwire/shared/runtime/log';
import type { IntervalRecorder } from '@podwire/shared/telemetry/intervals';

import type { Limits } from './clients/clients.js';
import { readCommand } from './cni/environment.js';
import { version } from './commands/status.js';
import { requireCompatibleShim } from './events.js';
import type { AttachmentQueue } from './requests/attachment-queue.js';
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

export interface DispatchOptions {
  readonly commands: Commands;
  readonly queue: AttachmentQueue;
  readonly spool: Pick<Spool, 'replayOf'>;
  /** Timeout of a command from its arrival, including the wait in the queue, in milliseconds. */
  readonly timeoutMs: Readonly<Record<TimedCommand, number>>;
  readonly clock: Clock;
  readonly onceLogger: OnceLogger;
}

/** Follows one command. */
interface CommandObserver {
  readonly recorder: IntervalRecorder;
  /** Called once the request of a container is validated. */
  readonly onContainer: (request: ContainerRequest) => void;
}

/** Validates a CNI command and runs it in its turn. @returns the result, if the command has one. @throws Failure */
export async function dispatch(
  request: CniRequest,
  observer: CommandObserver,
  options: DispatchOptions,
): Promise<object | undefined> {
  const { commands, onceLogger } = options;
  const command = readCommand(request.variables);
  requireCompatibleShim(command, request, onceLogger);
  const call = { request, observer, ...options };
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

interface Call extends DispatchOptions {
  readonly request: CniRequest;
  readonly observer: CommandObserver;
}

/** Runs a command of an attachment after the earlier ones of the attachment. */
function inTurn<Request extends ContainerRequest>(
  command: 'ADD' | 'CHECK' | 'DEL',
  container: Request,
  work: (request: Request, limits: Limits) => Promise<object | undefined>,
  call: Call,
): Promise<object | undefined> {
  const { queue, spool, observer } = call;
  const { cancel, startedNs } = call.request;
  const { attachment } = container;
  observer.onContainer(container);
  const limits = limitsOf(command, call);
  const wait = observer.recorder.begin('attachment queue', 'queue');
  return withAttachment(attachment, async () => {
    try {
      const replay = command === 'ADD' ? spool.replayOf(attachment) : undefined;
      // Only then: an ADD otherwise enters the queue in its order of arrival.
      if (replay) await replay;
      return await queue.run({ command, attachment, startedNs, deadlineMs: limits.deadlineMs, cancel }, () => {
        observer.recorder.end(wait);
        return work(container, limits);
      });
    } finally {
      observer.recorder.end(wait);
    }
  });
}

function limitsOf(command: TimedCommand, { request, observer: { recorder }, clock, timeoutMs }: Call): Limits {
  return { deadlineMs: clock.nowMs() + timeoutMs[command], signal: request.cancel.signal, recorder };
}
