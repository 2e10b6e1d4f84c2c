import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';

import { Failure } from '@podwire/shared/failure/failure';
import { readTlsFiles, type TlsFiles } from '@podwire/shared/tls/tls-files';

const UNIX = 'unix:';

/** Where a service listens, and what the user wrote that leads there. */
export interface Endpoint {
  /** Service name for messages: `podwire-ipam`. */
  readonly service: string;
  /** `unix:/path` or `host:port`. */
  readonly address: string;
  /** The option that sets another address. */
  readonly option: string;
  /** TLS settings; undefined for plain text. */
  readonly tls?: EndpointTls | undefined;
}

export interface EndpointTls {
  readonly files: TlsFiles;
  /** DNS name in the service's certificate. */
  readonly serverName: string;
}

export interface ReachLimits {
  readonly timeoutMs: number;
  /** The option that raises the timeout; undefined where the timeout is fixed. */
  readonly timeoutOption?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'the socket does not exist: the service does not run on this machine, or listens elsewhere',
  ECONNREFUSED: 'connection refused: the service does not run',
  EACCES: 'permission denied: run podwirectl as root',
};

/**
 * Fails immediately if no process listens, or if TLS fails. A gRPC channel would retry both until its deadline, and
 * would not report the reason.
 * @throws Failure UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED, INVALID_SETTINGS for files that cannot be used
 */
export function assertReachable(endpoint: Endpoint, limits: ReachLimits): Promise<void> {
  const { service, address, option, tls } = endpoint;
  const { timeoutMs, timeoutOption, signal } = limits;
  const subject = `${service} at ${address}`;
  return new Promise((resolve, reject) => {
    const socket = tls ? connectSecurely(address, tls) : connectTo(address);
    const end = (failure?: Failure): void => {
      signal?.removeEventListener('abort', cancel);
      socket.destroy();
      if (failure) reject(failure);
      else resolve();
    };
    const cancel = (): void => end(new Failure('CANCELLED', `${subject}: the connection was cancelled`));
    const refuse = (reason: string, cause?: unknown): void =>
      end(new Failure('UNREACHABLE', `${subject}: ${reason}`, { cause }));
    signal?.addEventListener('abort', cancel, { once: true });
    if (signal?.aborted) cancel();
    socket.setTimeout(timeoutMs, () => {
      const advice = timeoutOption === undefined ? 'check the address and firewalls' : `raise it with ${timeoutOption}`;
      end(new Failure('DEADLINE_EXCEEDED', `${subject}: no connection within ${timeoutMs} ms; ${advice}`));
    });
    socket.once('error', (error: NodeJS.ErrnoException) => {
      const reason = tls && tlsReason(error, tls);
      refuse(reason ?? `${REASONS[error.code ?? ''] ?? error.message}; set another address with ${option}`, error);
    });
    if (!tls) {
      socket.once('connect', () => end());
      return;
    }
    // In TLS 1.3 the client finishes its handshake before the server checks the client's certificate. The first bytes of
    // HTTP/2, which the server sends unasked, show that it has accepted it.
    socket.once('data', () => end());
    socket.once('close', () => refuse(refusalReason(tls)));
  });
}

function connectTo(address: string): Socket {
  return address.startsWith(UNIX) ? connect(address.slice(UNIX.length)) : connect(hostAndPort(address));
}

/** @throws Failure INVALID_SETTINGS that lists every file that cannot be read or used */
function connectSecurely(address: string, { files, serverName }: EndpointTls): Socket {
  const { ca, identity } = readTlsFiles(files);
  return connectTls({
    ...hostAndPort(address),
    servername: serverName,
    ALPNProtocols: ['h2'],
    ca,
    cert: identity?.certificate,
    key: identity?.key,
  });
}

function hostAndPort(address: string): { readonly host: string; readonly port: number } {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at).replace(/^\[(.*)\]$/, '$1'), port: Number(address.slice(at + 1)) };
}

/** Codes of Node.js and OpenSSL for a certificate that no known authority has signed. */
const UNTRUSTED = [
  'CERT_SIGNATURE_FAILURE',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
];

/** OpenSSL's codes for an answer that is not TLS. */
const NOT_TLS = /^(ERR_SSL_WRONG_VERSION_NUMBER|ERR_SSL_PACKET_LENGTH_TOO_LONG|EPROTO)$/;

/** Why a connection with TLS failed; undefined where TLS is not the reason. */
function tlsReason(error: NodeJS.ErrnoException, tls: EndpointTls): string | undefined {
  const { code = '' } = error;
  const { ca } = tls.files;
  const authorities = ca ? `${ca.setting} ${ca.path}` : 'the system';
  if (UNTRUSTED.includes(code))
    return `its certificate is not signed by an authority of ${authorities}; name the authority of this cluster`;
  if (code === 'ERR_TLS_CERT_ALTNAME_INVALID' || code === 'INVALID_PURPOSE')
    return `its certificate is not one of ${tls.serverName}: another service listens there; set another address`;
  if (code === 'CERT_HAS_EXPIRED') return "its certificate has expired; renew it, or set this machine's clock";
  if (code === 'CERT_NOT_YET_VALID') return "its certificate is not valid yet; set this machine's clock";
  if (NOT_TLS.test(code)) return 'the answer is not TLS: another service listens there; set another address';
  if (code === 'ECONNRESET' || code === 'EPIPE' || code.startsWith('ERR_SSL_')) return refusalReason(tls, error);
  return undefined;
}

function refusalReason({ files }: EndpointTls, error?: Error): string {
  const text = error ? ` (${error.message})` : '';
  if (!files.identity) return `it closed the connection during the TLS handshake${text}; see its log`;
  const { setting, path } = files.identity.certificate;
  return `it refuses the certificate of ${setting} ${path}: another authority has signed it, it has expired, or it is not for clients${text}; use another`;
}
