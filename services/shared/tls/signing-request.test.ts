import 'reflect-metadata';

import { createPublicKey } from 'node:crypto';

import * as x509 from '@peculiar/x509';
import { expect, test } from 'vitest';

import { createSigningRequest } from './signing-request.js';

test('a request proves the possession of its key, and names no subject', async () => {
  const { key, request } = await createSigningRequest();

  const parsed = new x509.Pkcs10CertificateRequest(request);
  await expect(parsed.verify()).resolves.toBe(true);
  expect(parsed.subject).toBe('');
  const requested = createPublicKey({ key: Buffer.from(parsed.publicKey.rawData), format: 'der', type: 'spki' });
  expect(requested.equals(createPublicKey(key))).toBe(true);
  expect(requested.asymmetricKeyDetails).toEqual({ namedCurve: 'prime256v1' });
});

test('a request with a changed byte is not signed by its key', async () => {
  const { request } = await createSigningRequest();
  const last = request.length - 1;
  request.writeUInt8(request.readUInt8(last) ^ 1, last);

  await expect(new x509.Pkcs10CertificateRequest(request).verify()).resolves.toBe(false);
});

test('every request has a key of its own', async () => {
  const [one, other] = [await createSigningRequest(), await createSigningRequest()];

  expect(one.key).not.toBe(other.key);
});
