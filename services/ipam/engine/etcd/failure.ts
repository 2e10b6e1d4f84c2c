import { X509Certificate } from 'node:crypto';

import { Failure, type FailureOptions } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

/** etcd has not executed the request and will not execute it. Every other failure leaves that open. */
export class NotExecuted extends Failure {}

/** The requested revision is compacted: a paged read has to start again. */
export class RevisionGone extends Error {
  override readonly name = 'RevisionGone';
}

interface Refusal {
  /** Parts of etcd's error text; constants of its API (api/v3rpc/rpctypes/error.go). */
  readonly texts: readonly string[];
  readonly code: 'STORE_FULL' | 'STORE_LIMIT' | 'STORE_DENIED';
  readonly reason: string;
}

const REFUSALS: readonly Refusal[] = [
  {
    texts: ['database space exceeded'],
    code: 'STORE_FULL',
    reason:
      'has no space left within its quota and takes no more writes: compact it (etcdctl compact), release the space (etcdctl defrag), lift the alarm (etcdctl alarm disarm), or raise --quota-backend-bytes; then repeat the request',
  },
  {
    texts: ['too many operations in txn request'],
    code: 'STORE_LIMIT',
    reason:
      'allows fewer operations in one transaction than PODWIRE_IPAM_ETCD_MAX_TXN_OPS says: lower that to its --max-txn-ops, or raise the latter',
  },
  {
    texts: ['request is too large', 'received message larger than max'],
    code: 'STORE_LIMIT',
    reason:
      'allows smaller requests than PODWIRE_IPAM_ETCD_MAX_REQUEST_BYTES says: lower that to its --max-request-bytes, or raise the latter',
  },
  {
    texts: ['permission denied'],
    code: 'STORE_DENIED',
    reason:
      'does not let this user read and write all keys below the prefix and below /podwire<prefix>: grant it a role that may (etcdctl role grant-permission --prefix)',
  },
  {
    texts: ['authentication failed, invalid user ID or password'],
    code: 'STORE_DENIED',
    reason:
      'does not know the user or its password: check PODWIRE_IPAM_ETCD_USERNAME and PODWIRE_IPAM_ETCD_PASSWORD_FILE',
  },
  {
    texts: ['user name is empty', 'user name not found'],
    code: 'STORE_DENIED',
    reason:
      'requires a user: set PODWIRE_IPAM_ETCD_USERNAME and PODWIRE_IPAM_ETCD_PASSWORD_FILE, or a client certificate whose common name is a user',
  },
  {
    texts: ['authentication is not enabled'],
    code: 'STORE_DENIED',
    reason:
      'has authentication disabled: unset PODWIRE_IPAM_ETCD_USERNAME, or enable authentication there (etcdctl auth enable)',
  },
];

const COMPACTED_TEXT = 'required revision has been compacted';

/**
 * The one place where etcd's errors become failures.
 * @param endpoint - URL of the server
 * @param clientCertificate - undefined for none
 * @returns a failure of Podwire's as it is; {@link NotExecuted} when etcd has refused; {@link RevisionGone}; else
 * STORE_UNAVAILABLE
 */
export function failureOfEtcd(
  error: unknown,
  endpoint: string,
  clientCertificate: ClientCertificate | undefined,
): Failure | RevisionGone {
  if (error instanceof Failure || error instanceof RevisionGone) return error;
  const text = connectionText(messageOf(error));
  const options: FailureOptions = { cause: error, details: { endpoint } };
  const refusal = REFUSALS.find(({ texts }) => texts.some((known) => text.includes(known)));
  if (refusal) return new NotExecuted(refusal.code, `etcd at ${endpoint} ${refusal.reason} (${text})`, options);
  if (text.includes(COMPACTED_TEXT)) return new RevisionGone(text);
  const hint =
    tlsReason(text, clientCertificate) ??
    'check that it runs, has a leader, and can be reached; then repeat the request';
  return new Failure('STORE_UNAVAILABLE', `etcd at ${endpoint} does not answer (${text}): ${hint}`, options);
}

/** The request timed out. */
export function timeoutFailure(endpoint: string, timeoutMs: number): Failure {
  return new Failure(
    'STORE_UNAVAILABLE',
    `etcd at ${endpoint} has not answered within ${timeoutMs} ms: check that it runs, has a leader, and a disk that is fast enough; then repeat the request`,
    { details: { endpoint } },
  );
}

/** Compaction interrupted a large read at each attempt. */
export function compactedFailure(cause: RevisionGone): Failure {
  return new Failure(
    'STORE_UNAVAILABLE',
    'etcd was compacted while its records were read, several times in a row: compact it less often, and repeat the request',
    { cause },
  );
}

/** The datastore is no longer the one whose records are known here. */
export function replacedFailure(endpoint: string, reason: string): Failure {
  return new NotExecuted(
    'STORE_CORRUPT',
    `etcd at ${endpoint} is not the datastore that was read before (${reason}): it was restored from a copy, or is another one; check PODWIRE_IPAM_ETCD_ENDPOINTS and restart podwire-ipam`,
    { details: { endpoint } },
  );
}

/** The request used replaced credentials. The next one uses the current ones. */
export function replacedCredentialsFailure(endpoint: string, cause: unknown): Failure {
  return new NotExecuted(
    'STORE_UNAVAILABLE',
    `etcd at ${endpoint} has refused credentials that were replaced since: repeat the request`,
    { details: { endpoint }, cause },
  );
}

/** The client certificate, and the time of the failed connection. */
interface ClientCertificate {
  /** PEM, its own certificate first. */
  readonly certificate: Buffer;
  readonly nowMs: number;
}

/** Words of Node.js and OpenSSL for TLS faults. */
const TLS_TEXT = /certificate|self-signed|SSL|TLS|wrong version number|altnames|issuer/i;

/** TLS alerts for a refused client certificate (RFC 8446, 6.2). */
const REFUSAL =
  /alert (bad certificate|certificate (?:expired|unknown|revoked|required)|unknown ca|handshake failure|access denied)/;

/** A refusal may appear only as a closed connection. */
const CONNECTION_LOSS = /ECONNRESET|EPIPE|Connection dropped|socket hang up/;

/** Faults of etcd's certificate, by the words of OpenSSL and Node.js. */
const FAULTS: readonly { readonly text: RegExp; readonly hint: string }[] = [
  {
    text: /certificate has expired/,
    hint: 'the certificate that etcd shows, or the one that signed it, has expired: renew it there; etcd reloads it',
  },
  {
    text: /certificate is not yet valid/,
    hint: 'the certificate that etcd shows, or the one that signed it, is not valid yet: compare the clocks',
  },
  {
    text: /altnames/,
    hint: 'etcd’s certificate is for other names: PODWIRE_IPAM_ETCD_ENDPOINTS has to name etcd as its certificate does',
  },
  {
    text: /self-signed|unable to (?:get|verify)|issuer/,
    hint: 'the certificate that etcd shows is signed by none of the authorities in PODWIRE_IPAM_ETCD_CA_FILE',
  },
];

const ANY_FAULT =
  'check the scheme of PODWIRE_IPAM_ETCD_ENDPOINTS and the files of PODWIRE_IPAM_ETCD_CA_FILE, _CERT_FILE and _KEY_FILE';

/**
 * The remedy when TLS is, or may be, the reason for a missing connection.
 * @param text - of the error
 * @param clientCertificate - undefined for none
 * @returns undefined when the text does not concern TLS
 */
export function tlsReason(text: string, clientCertificate: ClientCertificate | undefined): string | undefined {
  const refused = REFUSAL.exec(text)?.[1];
  const expiry = clientCertificate && expiryOf(clientCertificate);
  if (expiry !== undefined && (refused !== undefined || CONNECTION_LOSS.test(text)))
    return `the certificate of PODWIRE_IPAM_ETCD_CERT_FILE has expired at ${expiry}: renew it and its key; podwire-ipam rereads the files`;
  if (refused !== undefined)
    return clientCertificate
      ? `etcd refuses the certificate of PODWIRE_IPAM_ETCD_CERT_FILE (${refused}): it has to be signed by an authority of etcd’s --trusted-ca-file`
      : `etcd requires a client certificate (${refused}): set PODWIRE_IPAM_ETCD_CERT_FILE and PODWIRE_IPAM_ETCD_KEY_FILE`;
  return FAULTS.find((fault) => fault.text.test(text))?.hint ?? (TLS_TEXT.test(text) ? ANY_FAULT : undefined);
}

/** @returns the expiry in RFC 3339; undefined for a valid certificate */
function expiryOf({ certificate, nowMs }: ClientCertificate): string | undefined {
  const endMs = Date.parse(new X509Certificate(certificate).validTo);
  return endMs < nowMs ? new Date(endMs).toISOString() : undefined;
}

/** gRPC's text of a failed connection, without its bookkeeping and OpenSSL's source lines. */
export function connectionText(text: string): string {
  return text
    .replace(/[0-9A-F]+:error:[0-9A-F]+:SSL routines:[^:\n]*:([^:\n]*)[^\n]*\n?/g, '$1')
    .replace(/(?: \([^()]*Z\))?\.? Resolution note:\s*$/, '')
    .replace(/\s*\n\s*/g, ' ');
}
