import { readFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { CertificateFolder } from '@podwire/shared/testing/certificates';
import type { Validity } from '@podwire/shared/tls/authority';
import { createSigningRequest } from '@podwire/shared/tls/signing-request';
import { afterAll, beforeAll, expect, test } from 'vitest';

import {
  areSameAuthorities,
  commonNameOf,
  inspect,
  lifeOf,
  momentOf,
  parseCertificates,
  type CertificateFiles,
} from './certificate.js';

const HOUR_MS = 3_600_000;
const FROM_MS = Date.parse('2026-01-01T00:00:00Z');
const DAY: Validity = { fromMs: FROM_MS, untilMs: FROM_MS + 24 * HOUR_MS };

let folder: string;
let authority: CertificateFolder;
let other: CertificateFolder;
let files: CertificateFiles;

async function issued(by: CertificateFolder, validity = DAY): Promise<CertificateFiles> {
  const { key, request } = await createSigningRequest();
  return { key, ...(await by.answer(request, 'worker-1', validity)) };
}

const trustedBy = (by: CertificateFolder) => parseCertificates(readFileSync(by.caPath, 'utf8'));

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-certificate-'));
  authority = await CertificateFolder.create(join(folder, 'one'));
  other = await CertificateFolder.create(join(folder, 'other'));
  files = await issued(authority);
});
afterAll(() => rmSync(folder, { recursive: true }));

test('a certificate in the middle of its life is usable, with its node and its life', () => {
  const inspection = inspect(files, trustedBy(authority), FROM_MS + 12 * HOUR_MS);

  expect(inspection).toMatchObject({ usable: true, life: DAY });
  expect(inspection.usable && commonNameOf(inspection.certificate)).toBe('worker-1');
});

test.each<[string, number, string]>([
  ['a minute before its start', FROM_MS - 60_000, 'is valid from 2026-01-01T00:00:00Z on'],
  ['four minutes before its end', DAY.untilMs - 4 * 60_000, 'expires at 2026-01-02T00:00:00Z'],
  ['at its end', DAY.untilMs, 'expired at 2026-01-02T00:00:00Z'],
])('is not usable %s', (_, nowMs, fault) => {
  expect(inspect(files, trustedBy(authority), nowMs)).toEqual({ usable: false, fault });
});

test('the margin of a short life is a twentieth of it', async () => {
  const minute = { fromMs: FROM_MS, untilMs: FROM_MS + 60_000 };
  const short = await issued(authority, minute);

  expect(inspect(short, trustedBy(authority), FROM_MS + 56_000)).toMatchObject({ usable: true });
  expect(inspect(short, trustedBy(authority), FROM_MS + 58_000)).toMatchObject({ usable: false });
});

test.each<[string, () => Promise<CertificateFiles> | CertificateFiles, string]>([
  ['another authority', () => issued(other), 'is not signed by a trusted authority'],
  ['another key', async () => ({ ...files, key: (await issued(authority)).key }), 'does not belong to its key'],
  ['no key', () => ({ ...files, key: '' }), 'does not belong to its key'],
  ['no certificate', () => ({ ...files, certificate: 'none\n' }), 'is not a certificate in PEM'],
  [
    'a damaged certificate',
    () => ({ ...files, certificate: files.certificate.replace(/\n.{9}/, '\nAAAAAAAAA') }),
    'is not a certificate in PEM',
  ],
  ['no authorities', () => ({ ...files, authorities: '' }), 'is stored without authorities'],
])('files with %s are not usable', async (_, made, fault) => {
  expect(inspect(await made(), trustedBy(authority), FROM_MS + HOUR_MS)).toEqual({ usable: false, fault });
});

test('authorities are the same in any order, and with repetitions', () => {
  const [one, two] = [trustedBy(authority), trustedBy(other)];

  expect(areSameAuthorities([...one, ...two], [...two, ...one, ...two])).toBe(true);
  expect(areSameAuthorities(one, [...one, ...two])).toBe(false);
  expect(areSameAuthorities([...one, ...two], one)).toBe(false);
  expect(areSameAuthorities(one, two)).toBe(false);
});

test('all certificates of a bundle are read, other blocks are not', () => {
  const bundle = readFileSync(authority.caPath, 'utf8') + files.key + readFileSync(other.caPath, 'utf8');

  expect(parseCertificates(bundle)).toHaveLength(2);
  expect(parseCertificates(files.key)).toEqual([]);
});

test('a moment is a part of a life', () => {
  expect(momentOf(DAY, 0.5)).toBe(FROM_MS + 12 * HOUR_MS);
  expect(lifeOf(parseCertificates(files.certificate)[0]!)).toEqual(DAY);
});
