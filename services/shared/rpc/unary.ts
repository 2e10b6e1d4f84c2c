import type { handleUnaryCall, MethodDefinition } from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { checkAccess, type AccessControl } from './access.js';
import { openCall, type Call } from './border.js';

export type Handler<Request, Response> = (request: Request, call: Call) => Promise<Response>;

export interface UnaryOptions {
  readonly log: Logger;
  readonly clock: Clock;
  /** Timeout of a call without a deadline, in milliseconds. */
  readonly defaultTimeoutMs: number;
  /** Undefined where every caller that reaches the server may call everything. */
  readonly access?: AccessControl | undefined;
}

/** Converts handlers of unary methods to gRPC's. One per server. */
export type Unary = <Request, Response>(
  method: MethodDefinition<Request, Response>,
  handler: Handler<Request, Response>,
) => handleUnaryCall<Request, Response>;

/** Methods with one request and one answer, behind the server's border. */
export function unaryHandlers({ access, ...options }: UnaryOptions): Unary {
  return (method, handler) => (call, reply) => {
    const { path, requestSerialize } = method;
    const served = openCall(call, { path, ...options });
    void context.with(served.context, async () => {
      try {
        if (access) await checkAccess(access, call, { path, encodeRequest: () => requestSerialize(call.request) });
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
