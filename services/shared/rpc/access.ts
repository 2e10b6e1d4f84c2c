import type { ServerUnaryCall } from '@grpc/grpc-js';

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
export type IdentifiableCall = Pick<ServerUnaryCall<unknown, unknown>, 'getAuthContext' | 'getPeer'>;

/** What gRPC says of the peer of a connection that it did not accept itself: a unix socket's. */
const NOT_TCP = 'unknown';

export interface AccessControl {
  readonly authorize: Authorize;
  /** Whether connections over TCP have client certificates; otherwise they are local ones in plain text. */
  readonly hasTls: boolean;
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

function identify({ hasTls, clock }: AccessControl, call: IdentifiableCall): Caller {
  if (!hasTls || call.getPeer() === NOT_TCP) return LOCAL_CALLER;
  const { sslPeerCertificate } = call.getAuthContext();
  if (!sslPeerCertificate)
    throw new Failure('ACCESS_DENIED', 'connection: it has no client certificate; connect with one');
  return callerOf(sslPeerCertificate, clock.nowMs());
}
