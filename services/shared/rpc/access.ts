import {
  ServerInterceptingCall,
  ServerListenerBuilder,
  type ServerInterceptor,
  type ServerUnaryCall,
} from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';
import type { Clock } from '../runtime/clock.js';
import { callerOf, LOCAL_CALLER, type Caller } from '../tls/caller.js';

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

export interface AccessControl {
  readonly authorize: Authorize;
  readonly clock: Clock;
}

/**
 * Refuses a call before its handler runs.
 * @throws Failure ACCESS_DENIED
 */
export async function checkAccess(
  access: AccessControl,
  call: IdentifiableCall,
  request: Omit<AccessRequest, 'caller'>,
): Promise<void> {
  const caller = identify(access, call);
  if (caller.kind !== 'local') await access.authorize({ caller, ...request });
}

function identify({ clock }: AccessControl, call: IdentifiableCall): Caller {
  if (call.metadata.get(NETWORK_KEY).length === 0) return LOCAL_CALLER;
  const { sslPeerCertificate } = call.getAuthContext();
  if (!sslPeerCertificate)
    throw new Failure('ACCESS_DENIED', 'connection: it has no client certificate; connect with one');
  return callerOf(sslPeerCertificate, clock.nowMs());
}
