import { compareTexts } from '@podwire/shared/words/order';

import { readSerialNumber, type RevokedCertificate } from '../revoked-certificate.js';
import { field, isAbsent, readCount, readList, readObject, readOptionalText, readText, unreadable } from './fields.js';
import type { Field } from './fields.js';
import type { JsonObject } from './json.js';

/** Podwire's own record of the revoked certificates. Times are epoch milliseconds. */

export function decodeRevokedCertificates(raw: JsonObject): readonly RevokedCertificate[] {
  const certificates = readList(field(raw, 'certificates')).map(decodeCertificate);
  return certificates.sort((one, other) => compareTexts(one.serialNumber, other.serialNumber));
}

function decodeCertificate(source: Field): RevokedCertificate {
  const raw = readObject(source);
  const of = (name: string): Field => field(raw, name, source.path);
  const serialNumber = readSerialNumber(readText(of('serialNumber')));
  if (serialNumber === undefined) throw unreadable(of('serialNumber'), 'a serial number');
  return {
    serialNumber,
    name: readOptionalText(of('name')) ?? '',
    revokedAtMs: readTimeMs(of('revokedAtMs')),
    expiresAtMs: isAbsent(of('expiresAtMs')) ? undefined : readTimeMs(of('expiresAtMs')),
  };
}

function readTimeMs(source: Field): number {
  return readCount(source, Number.MAX_SAFE_INTEGER);
}

export function encodeRevokedCertificates(certificates: readonly RevokedCertificate[], raw: JsonObject): JsonObject {
  const entries = certificates.map(({ expiresAtMs, ...entry }) => ({ ...entry, expiresAtMs: expiresAtMs ?? null }));
  return { ...raw, certificates: entries };
}
