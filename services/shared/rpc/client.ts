import {
  Client,
  credentials,
  Metadata,
  status,
  type ChannelOptions,
  type MethodDefinition,
  type ServiceError,
} from '@grpc/grpc-js';
import { SpanKind, trace, context, type Span } from '@opentelemetry/api';

import { failureOfError } from '../failure/status.js';
import { markFailed } from '../runtime/span.js';
import { injectContext, methodName, rpcAttributes } from './tracing.js';

/** How one call is limited. */
export interface CallLimits {
  /** When the caller no longer wants the answer, in epoch milliseconds. The server sees it too. */
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
}

/**
 * A service restarts within a second or two; a channel that backs off for longer, as is gRPC's default, would
 * keep pods waiting for a service that is there.
 */
const CHANNEL: ChannelOptions = {
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.min_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 500,
  'grpc.service_config_disable_resolution': 1,
};

/** The way to one service: a channel that connects by itself, and again whenever it must. */
export class Peer {
  /** For messages: `podwire-ipam at unix:/run/podwire/ipam.sock`. */
  readonly description: string;
  readonly #client: Client;

  constructor(service: string, address: string) {
    this.description = `${service} at ${address}`;
    this.#client = new Client(address, credentials.createInsecure(), CHANNEL);
  }

  /**
   * Calls a method and waits for its answer; while the service is away, for the service, until the deadline.
   * @throws Failure the service's own, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED, UNIMPLEMENTED
   */
  call<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
    limits: CallLimits,
  ): Promise<Response> {
    const options = { kind: SpanKind.CLIENT, attributes: rpcAttributes(method.path) };
    const span = trace.getTracer('podwire').startSpan(methodName(method.path), options);
    return context.with(trace.setSpan(context.active(), span), () =>
      this.#send(method, request, limits).then(
        (response) => {
          finish(span, status.OK);
          return response;
        },
        (error: ServiceError) => {
          const failure = failureOfError(error, this.description);
          markFailed(span, failure);
          finish(span, error.code);
          throw failure;
        },
      ),
    );
  }

  /** Ends the channel; calls under way fail. Idempotent. */
  close(): void {
    this.#client.close();
  }

  #send<Request, Response>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Response>,
    request: Request,
    { deadlineMs, signal }: CallLimits,
  ): Promise<Response> {
    const metadata = new Metadata({ waitForReady: true });
    injectContext(metadata);
    return new Promise((resolve, reject) => {
      const call = this.#client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        { deadline: deadlineMs },
        (error, response) => {
          signal?.removeEventListener('abort', cancel);
          if (error) reject(error);
          else if (response !== undefined) resolve(response);
        },
      );
      const cancel = () => call.cancel();
      signal?.addEventListener('abort', cancel, { once: true });
      if (signal?.aborted) cancel();
    });
  }
}

function finish(span: Span, code: status): void {
  span.setAttribute('rpc.response.status_code', status[code]);
  span.end();
}
