import { setMaxListeners } from 'node:events';

import { trace } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal, untilAborted } from '@podwire/shared/failure/signal';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { recordInterval } from '@podwire/shared/telemetry/intervals';
import { withSpan } from '@podwire/shared/telemetry/span';

import type { Dataplane, Limits } from './clients.js';

interface LocalCallTools {
  readonly clock: Clock;
  readonly log: Logger;
}

/** Name of a call. */
interface LocalCall {
  /** Name in the intervals of a command. */
  readonly method: string;
  readonly span: string;
}

/** The calls of the dataplane. */
export const DATAPLANE_CALLS = {
  attachPod: { method: 'AttachPod', span: 'podwire.dataplane.attach' },
  detachPod: { method: 'DetachPod', span: 'podwire.dataplane.detach' },
  checkPod: { method: 'CheckPod', span: 'podwire.dataplane.check' },
  isAttached: { method: 'GetPod', span: 'podwire.dataplane.get' },
  wires: { method: 'ListPods', span: 'podwire.dataplane.list' },
  collectGarbage: { method: 'CollectGarbage', span: 'podwire.dataplane.collect_garbage' },
} as const satisfies Readonly<Record<Exclude<keyof Dataplane, 'isServing'>, LocalCall>>;

/**
 * Calls of the node's dataplane within this process, with what a client adds to calls of another one: a deadline, a span, and an
 * interval of the command. A caller does not wait longer than its deadline or its signal; the work, or its rollback, then
 * continues without it.
 */
export class LocalCalls {
  readonly #tools: LocalCallTools;

  constructor(tools: LocalCallTools) {
    this.#tools = tools;
  }

  /**
   * @param work - its signal fires with a Failure
   * @throws Failure of the work, DEADLINE_EXCEEDED, or the reason of the limits' signal
   */
  async call<Answer>(
    { method, span }: LocalCall,
    limits: Limits,
    work: (signal: AbortSignal) => Promise<Answer>,
  ): Promise<Answer> {
    const limited = limitedSignal(limits, this.#tools.clock);
    const { signal } = limited;
    try {
      if (signal.aborted) throw failureOfSignal(signal);
      const run = () => this.#run(span, () => work(signal));
      return await recordInterval(`dataplane ${method}`, 'dataplane', () => untilAborted(run(), signal));
    } finally {
      limited.release();
    }
  }

  async #run<Answer>(span: string, work: () => Promise<Answer>): Promise<Answer> {
    try {
      return await withSpan(span, {}, work);
    } catch (error) {
      if (error instanceof Failure) throw error;
      this.#tools.log.error({ err: error }, `defect: ${span}`);
      const traceId = trace.getActiveSpan()?.spanContext().traceId;
      throw new Failure('INTERNAL', 'internal error: see the log of podwire-node under this trace', {
        cause: error,
        traceId,
      });
    }
  }
}

interface LimitedSignal {
  readonly signal: AbortSignal;
  /** Releases timer and listener. */
  readonly release: () => void;
}

/** A signal that also fires at the deadline. */
function limitedSignal({ deadlineMs, signal }: Limits, clock: Clock): LimitedSignal {
  const controller = new AbortController();
  // Every concurrent operation of a call listens to the signal. Node.js warns of a leak at more than ten listeners.
  setMaxListeners(0, controller.signal);
  const timeoutMs = Math.max(0, deadlineMs - clock.nowMs());
  const expire = () =>
    controller.abort(new Failure('DEADLINE_EXCEEDED', `the node's dataplane did not finish within ${timeoutMs} ms`));
  const cancel = () => controller.abort(signal.reason);
  const cancelTimer = clock.after(timeoutMs, expire);
  signal.addEventListener('abort', cancel, { once: true });
  if (signal.aborted) cancel();
  const release = () => {
    cancelTimer();
    signal.removeEventListener('abort', cancel);
  };
  return { signal: controller.signal, release };
}
