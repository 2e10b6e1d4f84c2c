import type { handleUnaryCall, MethodDefinition } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { openCall, type Call } from './border.js';

export type Handler<Request, Response> = (request: Request, call: Call) => Promise<Response>;

export interface UnaryOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Time for a call whose caller set none, in milliseconds. */
  readonly defaultTimeoutMs: number;
}

/** Makes gRPC handlers out of functions of ours. One for each server. */
export type Unary = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: Handler<Request, Response>,
) => handleUnaryCall<Request, Response>;

/** Methods with one request and one answer, behind the server's border. */
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
