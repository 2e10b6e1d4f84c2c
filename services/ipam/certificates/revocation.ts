import { Failure } from '@podwire/shared/failure/failure';
import { compareTexts } from '@podwire/shared/words/order';

import { requireReadable } from '../records/absence.js';
import type { RevokedCertificate } from '../records/revoked-certificate.js';
import type { Change, Decision, View } from '../records/view.js';

/** The list of revoked certificates. It is one record, which every replica has in memory. */

const MAX_COUNT = 2000;

/** The list, in the order of the serial numbers. @throws Failure STORE_CORRUPT */
export function revokedCertificates(view: View): readonly RevokedCertificate[] {
  requireReadable(view, { kind: 'revokedCertificates' });
  return view.revokedCertificates();
}

interface Revocation {
  readonly certificate: RevokedCertificate;
  readonly isNew: boolean;
}

/**
 * Adds a certificate, and removes expired ones. Idempotent.
 * @throws Failure STORE_LIMIT, STORE_CORRUPT
 */
export function revoke(view: View, certificate: RevokedCertificate): Decision<Revocation> {
  const stored = revokedCertificates(view);
  const known = stored.find(({ serialNumber }) => serialNumber === certificate.serialNumber);
  if (known) return { changes: [], outcome: { certificate: known, isNew: false } };
  const valid = stored.filter(({ expiresAtMs = Infinity }) => expiresAtMs > certificate.revokedAtMs);
  if (valid.length >= MAX_COUNT) {
    const text = `${valid.length} certificates are revoked, which is the limit; replace their authority instead`;
    throw new Failure('STORE_LIMIT', text);
  }
  return { changes: [put([...valid, certificate])], outcome: { certificate, isNew: true } };
}

/** Removes a certificate. @throws Failure CERTIFICATE_NOT_FOUND, STORE_CORRUPT */
export function restore(view: View, serialNumber: string): Decision<RevokedCertificate> {
  const stored = revokedCertificates(view);
  const outcome = stored.find((each) => each.serialNumber === serialNumber);
  if (outcome) return { changes: [put(stored.filter((each) => each !== outcome))], outcome };
  const text = `certificate ${serialNumber} is not revoked; list the revoked certificates for their serial numbers`;
  throw new Failure('CERTIFICATE_NOT_FOUND', text, { details: { certificate: serialNumber } });
}

function put(certificates: readonly RevokedCertificate[]): Change {
  const value = [...certificates].sort((one, other) => compareTexts(one.serialNumber, other.serialNumber));
  return { type: 'put', record: { kind: 'revokedCertificates', value } };
}
