import {
  ServerInterceptingCall,
  ServerListenerBuilder,
  type ServerInterceptor,
  type ServerUnaryCall,
} from '@grpc/grpc-js';
import { context } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import type { Clock } from '../runtime/clock.js';
import { beginInterval } from '../telemetry/intervals.js';
import { callerOf, LOCAL_CALLER, ANONYMOUS_CALLER, type Caller } from '../tls/caller.js';
import type { Leave, RequestQueue } from './request-queue.js';

/** A call that its caller may be refused. */
export interface AccessRequest {
  /** `/package.Service/Method`. */
  readonly path: string;
  /** Encodes the request, for a decision that depends on it. */
  readonly encodeRequest: () => Buffer;
  readonly caller: Caller;
}

/** @throws Failure ACCESS_DENIED when the caller may not make the call */
export type Authorize = (request: AccessRequest) => Promise<void> | void;

/** The part of gRPC's calls that says who calls. */
export type IdentifiableCall = Pick<ServerUnaryCall<unknown, unknown>, 'getAuthContext' | 'metadata'>;

/** Metadata that {@link markNetworkCall} sets. A client can only add it, which takes rights away. */
const NETWORK_KEY = 'podwire-network';

/**
 * Marks every call that came over TLS. What gRPC says of a connection later, such as its address, is gone once the client
 * has closed it; a call without the mark is local, so the mark must not depend on that.
 */
export const markNetworkCall: ServerInterceptor = (_, call) =>
  new ServerInterceptingCall(call, {
    start: (next) => {
      const listener = new ServerListenerBuilder().withOnReceiveMetadata((metadata, pass) => {
        metadata.set(NETWORK_KEY, 'true');
        pass(metadata);
      });
      next(listener.build());
    },
  });

export interface Admission {
  readonly clock: Clock;
  /** Undefined where every caller that reaches the server may call everything. */
  readonly authorize?: Authorize | undefined;
  readonly queue: RequestQueue;
  /** Whether clients over the network show certificates. */
  readonly clientCertificates: 'required' | 'none';
}

/** A call that may execute. */
export interface AdmittedCall {
  readonly caller: Caller;
  /** Has to be called when the call has ended. */
  readonly leave: Leave;
}

const NOTHING_TO_LEAVE: Leave = () => undefined;

/**
 * Waits for the turn of a call, and refuses it if its caller may not make it. A local call waits for no turn: podwirectl
 * must work while nodes flood the service.
 * @throws Failure ACCESS_DENIED, TOO_MANY_REQUESTS, or the signal's
 */
export async function admitCall(
  { clock, authorize, queue, clientCertificates }: Admission,
  call: IdentifiableCall,
  { signal, ...request }: Omit<AccessRequest, 'caller'> & { readonly signal: AbortSignal },
): Promise<AdmittedCall> {
  const caller = identify(call, clientCertificates, clock);
  if (caller.kind === 'local') return { caller, leave: NOTHING_TO_LEAVE };
  const endWait = beginInterval(context.active(), 'podwire.rpc.queue_wait', 'ipam_queue');
  const leave = await queue.enter(caller, signal).finally(endWait);
  try {
    await authorize?.({ caller, ...request });
    return { caller, leave };
  } catch (error) {
    leave();
    throw error;
  }
}

function identify(call: IdentifiableCall, certificates: Admission['clientCertificates'], clock: Clock): Caller {
  if (call.metadata.get(NETWORK_KEY).length === 0) return LOCAL_CALLER;
  if (certificates === 'none') return ANONYMOUS_CALLER;
  const { sslPeerCertificate } = call.getAuthContext();
  if (!sslPeerCertificate)
    throw new Failure('ACCESS_DENIED', 'connection: it has no client certificate; connect with one');
  return callerOf(sslPeerCertificate, clock.nowMs());
}
