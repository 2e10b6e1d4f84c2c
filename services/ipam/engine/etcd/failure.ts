import { Failure, type FailureOptions } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

import { connectionText, tlsReason, type ShownCertificate } from '../../store/etcd/tls-reason.js';

/** Says that etcd has not executed, and will not execute, what it was asked for. Every other failure leaves that open. */
export class NotExecuted extends Failure {}

/** The revision that was asked for is compacted: what was being read page by page has to be begun again. */
export class RevisionGone extends Error {
  override readonly name = 'RevisionGone';
}

interface Refusal {
  /** What the text of etcd's error contains; these are constants of its API (api/v3rpc/rpctypes/error.go). */
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
      'wants a user: set PODWIRE_IPAM_ETCD_USERNAME and PODWIRE_IPAM_ETCD_PASSWORD_FILE, or a client certificate whose common name is a user',
  },
  {
    texts: ['authentication is not enabled'],
    code: 'STORE_DENIED',
    reason: 'has no users: take PODWIRE_IPAM_ETCD_USERNAME away, or enable authentication there (etcdctl auth enable)',
  },
];

const COMPACTED_TEXT = 'required revision has been compacted';

/**
 * The one place where etcd's errors become failures.
 * @param endpoint - whom the request was sent to
 * @param shown - what certificate it was shown; undefined for none
 * @returns a failure of Podwire's as it is; {@link NotExecuted} when etcd has refused; {@link RevisionGone}; else
 * STORE_UNAVAILABLE
 */
export function failureOfEtcd(
  error: unknown,
  endpoint: string,
  shown: ShownCertificate | undefined,
): Failure | RevisionGone {
  if (error instanceof Failure || error instanceof RevisionGone) return error;
  const text = connectionText(messageOf(error));
  const options: FailureOptions = { cause: error, details: { endpoint } };
  const refusal = REFUSALS.find(({ texts }) => texts.some((known) => text.includes(known)));
  if (refusal) return new NotExecuted(refusal.code, `etcd at ${endpoint} ${refusal.reason} (${text})`, options);
  if (text.includes(COMPACTED_TEXT)) return new RevisionGone(text);
  const hint =
    tlsReason(text, shown) ?? 'check that it runs, has a leader, and can be reached; then repeat the request';
  return new Failure('STORE_UNAVAILABLE', `etcd at ${endpoint} does not answer (${text}): ${hint}`, options);
}

/** What was asked for is not answered in time. */
export function timeoutFailure(endpoint: string, timeoutMs: number): Failure {
  return new Failure(
    'STORE_UNAVAILABLE',
    `etcd at ${endpoint} has not answered within ${timeoutMs} ms: check that it runs, has a leader, and a disk that is fast enough; then repeat the request`,
    { details: { endpoint } },
  );
}

/** A large read was overtaken by compaction, again and again. */
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

/** The credentials that a request came with were replaced. The next one comes with those of today. */
export function replacedCredentialsFailure(endpoint: string, cause: unknown): Failure {
  return new NotExecuted(
    'STORE_UNAVAILABLE',
    `etcd at ${endpoint} has refused credentials that were replaced since: repeat the request`,
    { details: { endpoint }, cause },
  );
}
