import 'reflect-metadata';

import { webcrypto } from 'node:crypto';
import { createSecureServer } from 'node:http2';
import type { TLSSocket } from 'node:tls';

import { Client, credentials } from '@grpc/grpc-js';
import * as x509 from '@peculiar/x509';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { omitAddressesAsServerNames } from './server-name.js';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };

const servers: ReturnType<typeof createSecureServer>[] = [];

/** A server with a certificate of its own for an address and a name, and the server names that its clients gave. */
async function serve(address: string) {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const names = new x509.SubjectAlternativeNameExtension([
    { type: 'ip', value: address },
    { type: 'dns', value: 'localhost' },
  ]);
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({ keys, extensions: [names] });
  const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  const [cert, key] = [certificate.toString('pem'), x509.PemConverter.encode(pkcs8, 'PRIVATE KEY')];
  const server = createSecureServer({ cert, key });
  const seen: TLSSocket['servername'][] = [];
  server.on('secureConnection', ({ servername }) => seen.push(servername));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  servers.push(server);
  const bound = server.address();
  if (typeof bound !== 'object' || !bound) throw new Error('the server has no port');
  /** @returns whether a connection is made */
  const connect = async (host: string): Promise<boolean> => {
    const client = new Client(`${host}:${bound.port}`, credentials.createSsl(Buffer.from(cert)));
    const error = await new Promise<Error | undefined>((resolve) => client.waitForReady(Date.now() + 2000, resolve));
    client.close();
    return error === undefined;
  };
  return { seen, connect };
}

beforeAll(() => {
  x509.cryptoProvider.set(webcrypto);
  omitAddressesAsServerNames();
  omitAddressesAsServerNames();
});
afterAll(() => {
  for (const server of servers) server.close();
});

test('a connection to an address names no server, one to a name does', async () => {
  const { seen, connect } = await serve('127.0.0.1');
  expect(await connect('127.0.0.1')).toBe(true);
  expect(await connect('localhost')).toBe(true);
  expect(seen).toEqual([false, 'localhost']);
});

test('a certificate without the address is refused', async () => {
  const { connect } = await serve('127.0.0.2');
  expect(await connect('127.0.0.1')).toBe(false);
});
