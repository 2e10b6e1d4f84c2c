import type { handleUnaryCall, MethodDefinition, ServiceDefinition, UntypedServiceImplementation } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import type { FailureCode } from '../failure/codes.js';
import { Failure } from '../failure/failure.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { IntervalRecorder, withRecorder } from '../telemetry/intervals.js';
import type { Caller } from '../tls/caller.js';
import { admitCall, withAuthor, type Admission } from './access.js';
import { openCall, requireDecoded, type Call } from './border.js';
import type { Leave } from './request-queue.js';
import { timingMetadata, timingOf } from './tracing.js';

/** A call of a unary method. */
export interface UnaryCall extends Call {
  readonly caller: Caller;
}

export type Handler<Request, Response> = (request: Request, call: UnaryCall) => Promise<Response>;

export interface UnaryOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Timeout of a call without a deadline, in milliseconds. */
  readonly defaultTimeoutMs: number;
  readonly admission: Admission;
}

/** Converts handlers of unary methods to gRPC's. One per server. */
export type Unary = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: Handler<Request, Response>,
) => handleUnaryCall<Request, Response>;

/** Failures of a request that did not execute, which the queue reports: in one line for many. */
const REPORTED_CODES: readonly FailureCode[] = ['DEADLINE_EXCEEDED', 'CANCELLED'];

/** Methods with one request and one answer, behind the server's border. */
export function unaryHandlers({ admission, ...options }: UnaryOptions): Unary {
  return (method, handler) => (call, reply) => {
    const { path, requestSerialize } = method;
    const served = openCall(call, { path, ...options });
    const isTimed = timingOf(call.metadata) !== undefined;
    const recorder = isTimed ? new IntervalRecorder(options.clock) : undefined;
    const handlerContext = recorder ? withRecorder(served.context, recorder) : served.context;
    void context.with(handlerContext, async () => {
      const { signal } = served;
      const encodeRequest = (): Buffer => requestSerialize(requireDecoded(call.request));
      let leave: Leave | undefined;
      try {
        const admitted = await admitCall(admission, call, { path, encodeRequest, signal });
        ({ leave } = admitted);
        const { caller } = admitted;
        const request = requireDecoded(call.request);
        const response = await context.with(withAuthor(context.active(), caller), () =>
          handler(request, { signal, caller }),
        );
        served.succeed();
        if (recorder) call.sendMetadata(timingMetadata(recorder.encode()));
        reply(null, response);
      } catch (error) {
        const isReported = !leave && error instanceof Failure && REPORTED_CODES.includes(error.code);
        const answer = served.fail(error, isReported ? { expected: true } : undefined);
        if (recorder) call.sendMetadata(timingMetadata(recorder.encode()));
        reply(answer);
      } finally {
        leave?.();
        served.release();
      }
    });
  };
}

/** A handler for each method of a service. */
export type Handlers<Definition> = {
  readonly [Name in keyof Definition]: Definition[Name] extends MethodDefinition<infer Request, infer Response>
    ? Handler<Request, Response>
    : never;
};

interface UnaryService {
  readonly name: string;
  readonly definition: ServiceDefinition;
  readonly implementation: UntypedServiceImplementation;
}

/** A service whose methods are all unary. */
export function unaryService<Definition extends ServiceDefinition>(
  definition: Definition,
  unary: Unary,
  handlers: Handlers<Definition>,
): UnaryService;
export function unaryService(
  definition: ServiceDefinition,
  unary: Unary,
  handlers: Readonly<Record<string, Handler<unknown, unknown>>>,
): UnaryService {
  const implementation: UntypedServiceImplementation = {};
  let name = '';
  for (const [method, details] of Object.entries(definition)) {
    const handler = handlers[method];
    if (handler) implementation[method] = unary(details, handler);
    [, name = ''] = details.path.split('/');
  }
  return { name, definition, implementation };
}
