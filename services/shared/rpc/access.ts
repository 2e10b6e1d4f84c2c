import type { Metadata, ServerUnaryCall } from '@grpc/grpc-js';
import { context, createContextKey, type Context } from '@opentelemetry/api';

import { Failure } from '../failure/failure.js';
import type { Clock } from '../runtime/clock.js';
import { beginInterval } from '../telemetry/intervals.js';
import { callerOf, formatCaller, LOCAL_CALLER, type Caller, type NetworkCaller } from '../tls/caller.js';
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

/** A caller, and what it was recognised by. */
export interface ProvenCaller {
  readonly caller: Caller;
  /** Whether the proof still holds. @throws Failure ACCESS_DENIED when it was revoked or has expired */
  readonly check: () => Promise<void> | void;
}

/** Knows the callers that show a token in place of a client certificate. */
export interface TokenVerifier {
  /**
   * @param token - empty for a call without one, which is refused as late as every other
   * @param connection - address and port of the client
   * @throws Failure ACCESS_DENIED, UNREACHABLE while new tokens cannot be verified, or the signal's
   */
  verify(token: string, connection: string, signal: AbortSignal): Promise<ProvenCaller> | ProvenCaller;
}

/** Metadata that {@link markNetworkCall} sets to the client's address and port. A client can only take rights away by it. */
const NETWORK_KEY = 'podwire-network';

/** Metadata with the token of a caller without a client certificate (RFC 6750, section 2.1). */
export const TOKEN_KEY = 'authorization';
export const TOKEN_SCHEME = 'Bearer ';

/**
 * Marks a call that came over TLS. gRPC's later information on a connection, such as its address, is gone once the client has
 * closed it; a call without the mark is local, so the mark must not depend on that.
 * @param connection - address and port of the client
 */
export function markNetworkCall(metadata: Metadata, connection: string): void {
  metadata.set(NETWORK_KEY, connection);
}

/** Empty without one. */
function tokenOf(metadata: Metadata): string {
  const [value] = metadata.get(TOKEN_KEY);
  return typeof value === 'string' && value.startsWith(TOKEN_SCHEME) ? value.slice(TOKEN_SCHEME.length) : '';
}

export interface Admission {
  readonly clock: Clock;
  /** Authorization; undefined where every caller that reaches the server may call everything. */
  readonly authorize?: Authorize | undefined;
  readonly queue: RequestQueue;
  /** Verifier for clients over the network without a certificate; undefined where they need one. */
  readonly tokens?: TokenVerifier | undefined;
  /** Whether the certificate of a serial number, in hexadecimal digits, is not accepted any more. */
  readonly isRevoked?: ((serialNumber: string) => Promise<boolean>) | undefined;
}

/** A call that may execute. */
export interface AdmittedCall extends ProvenCaller {
  /** Has to be called when the call has ended. */
  readonly leave: Leave;
}

const AUTHOR = createContextKey('podwire author');

/** The context of work that a caller, or a task of this process, has requested. */
export function withAuthor(from: Context, author: Caller | string): Context {
  return from.setValue(AUTHOR, typeof author === 'string' ? author : formatCaller(author));
}

/** Caller that requested the work of a context, in words; undefined for work of the process itself. */
export function authorIn(from: Context): string | undefined {
  const author = from.getValue(AUTHOR);
  return typeof author === 'string' ? author : undefined;
}

const NOTHING_TO_LEAVE: Leave = () => undefined;

/**
 * Waits for the turn of a call, and refuses it if its caller may not make it. A local call waits for no turn: podwirectl
 * must work while nodes flood the service.
 * @throws Failure ACCESS_DENIED, or the signal's
 */
export async function admitCall(
  admission: Admission,
  call: IdentifiableCall,
  { signal, ...request }: Omit<AccessRequest, 'caller'> & { readonly signal: AbortSignal },
): Promise<AdmittedCall> {
  const { authorize, queue } = admission;
  const { caller, check } = await identify(admission, call, signal);
  if (caller.kind === 'local') return { caller, check, leave: NOTHING_TO_LEAVE };
  const endWait = beginInterval(context.active(), 'podwire.rpc.queue_wait', 'ipam_queue');
  const leave = await queue.enter(caller, signal).finally(endWait);
  try {
    await check();
    await authorize?.({ caller, ...request });
    return { caller, check, leave };
  } catch (error) {
    leave();
    throw error;
  }
}

/**
 * The caller of a marked call, before anything is read of it.
 * @throws Failure ACCESS_DENIED, UNREACHABLE while new tokens cannot be verified, or the signal's
 */
export async function proveCaller(
  admission: Admission,
  call: IdentifiableCall,
  signal: AbortSignal,
): Promise<NetworkCaller> {
  const { caller, check } = await identify(admission, call, signal);
  await check();
  if (caller.kind === 'local') throw new Error('BUG: a call over the network is not marked');
  return caller;
}

const LOCAL: ProvenCaller = { caller: LOCAL_CALLER, check: () => undefined };

function identify(
  { tokens, isRevoked, clock }: Admission,
  call: IdentifiableCall,
  signal: AbortSignal,
): Promise<ProvenCaller> | ProvenCaller {
  const [connection] = call.metadata.get(NETWORK_KEY);
  if (connection === undefined) return LOCAL;
  const { sslPeerCertificate: certificate } = call.getAuthContext();
  if (certificate) {
    const caller = callerOf(certificate, clock.nowMs());
    const check = async (): Promise<void> => {
      if (await isRevoked?.(certificate.serialNumber))
        throw new Failure('ACCESS_DENIED', `client certificate of ${caller.name}: it is revoked; connect with another`);
    };
    return { caller, check };
  }
  if (!tokens) throw new Failure('ACCESS_DENIED', 'connection: it has no client certificate; connect with one');
  return tokens.verify(tokenOf(call.metadata), String(connection), signal);
}
