import type { handleUnaryCall, MethodDefinition } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { openCall, type Call } from './border.js';

export type Handler<Request, Response> = (request: Request, call: Call) => Promise<Response>;

export interface UnaryOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Timeout of a call without a deadline, in milliseconds. */
  readonly defaultTimeoutMs: number;
}

/** Converts handlers of unary methods to gRPC's. One per server. */
export type Unary = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: Handler<Request, Response>,
) => handleUnaryCall<Request, Response>;

/** Creates the converter for methods with one request and one answer. */
export function unaryHandlers(options: UnaryOptions): Unary {
  return (method, handler) => (call, reply) => {
    const served = openCall(call, { path: method.path, ...options });
    void context.with(served.context, async () => {
      try {
        const response = await handler(call.request, { signal: served.signal });
        served.succeed();
        reply(null, response);
      } catch (error) {
        reply(served.fail(error));
      } finally {
        served.release();
      }
    });
  };
}
