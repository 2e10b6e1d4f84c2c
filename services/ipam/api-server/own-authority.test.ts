import { X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { selfSignedServer } from '@podwire/shared/testing/certificates';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { Authority, type IssuedCertificate } from '@podwire/shared/tls/authority';
import { AuthorityDirectory } from '@podwire/shared/tls/authority-directory';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import { splitCertificates } from '@podwire/shared/tls/tls-files';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { KubernetesApi } from '../api-server/api.js';
import { AuthorityConfigMap } from '../api-server/authority-config-map.js';
import type { RunningService } from '../service.js';
import { TokenApi, NAMESPACE } from '../testing/token-api.js';
import { Place } from '../testing/service.js';
import { OwnAuthority } from './own-authority.js';

/** podwire-ipam's authority, with a double of the API server. */

const DAY_MS = 86_400_000;
const { signal } = new AbortController();

let folder: string;
let path: string;
let server: TokenApi;
let api: KubernetesApi;
let place: Place;
let clock: ManualClock;
const ends: (() => unknown)[] = [];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-authority-'));
  path = join(folder, 'storage', 'authority');
  server = await TokenApi.start(join(folder, 'account'));
  api = server.connect();
  place = new Place();
  clock = new ManualClock();
  clock.advance(Date.now() - clock.nowMs());
});

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
  api.close();
  await server.stop();
  place.remove();
  rmSync(folder, { recursive: true });
});

const refusal = (reason: string) => new Failure('INVALID_SETTINGS', `${path}: ${reason}`);

function store({ certificate, key }: IssuedCertificate): void {
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, 'ca.crt'), certificate);
  writeFileSync(join(path, 'ca.key'), key);
}

function open(directory = path) {
  const { log, lines } = recordingLog();
  const publication = new AuthorityConfigMap(api);
  const options = { directory: new AuthorityDirectory(directory, refusal), publication, clock, log };
  return OwnAuthority.open(options, signal).then((authority) => ({ authority, lines }));
}

const stored = () => readFileSync(join(path, 'ca.crt'), 'utf8');

test('a first start creates and publishes an authority, and the next one uses it', async () => {
  await open();
  expect(server.published).toBe(stored());
  expect(statSync(path).mode & 0o777).toBe(0o700);
  expect(statSync(join(path, 'ca.key')).mode & 0o777).toBe(0o600);

  const before = stored();
  const { authority } = await open();
  expect(stored()).toBe(before);
  const { certificate } = authority.material().identity!;
  const issued = new X509Certificate(certificate);
  expect(issued.checkHost(IPAM_SERVER_NAME)).toBe(IPAM_SERVER_NAME);
  expect(issued.verify(new X509Certificate(before).publicKey)).toBe(true);
});

test('a start with an empty storage is refused while nodes trust another authority', async () => {
  await open();

  await expect(open(join(folder, 'other-node'))).rejects.toThrow(
    `ConfigMap ${NAMESPACE}/podwire-authority: has the certificate of another`,
  );
  expect(existsSync(join(folder, 'other-node'))).toBe(false);
});

test('an authority that could not be published is not kept', async () => {
  server.answer = ({ method }) => (method === 'PATCH' ? { status: 503 } : undefined);
  await expect(open()).rejects.toMatchObject({ code: 'UNREACHABLE' });
  server.answer = ({ method }) => (method === 'PATCH' ? { status: 409 } : undefined);
  await expect(open()).rejects.toMatchObject({ code: 'UNREACHABLE' });
  expect(existsSync(join(path, 'ca.key'))).toBe(false);

  server.answer = () => undefined;
  await open();
  expect(server.published).toBe(stored());
});

test('a start with a stored authority needs no API server, and publishes later', async () => {
  await open();
  const before = server.published;
  server.published = '';
  server.answer = () => ({ status: 503 });
  const { authority } = await open();
  await expect(authority.maintain(signal)).rejects.toMatchObject({ code: 'UNREACHABLE' });

  server.answer = () => undefined;
  await authority.maintain(signal);
  expect(server.published).toBe(before);
  await authority.maintain(signal);
  expect(server.requests.filter(({ method }) => method === 'PATCH')).toHaveLength(2);
});

test('a replaced authority takes over without a restart, and nodes trust the earlier one, too', async () => {
  const { authority } = await open();
  const earlier = stored();
  const next = await Authority.create('next', { fromMs: Date.now() - 1000, untilMs: Date.now() + DAY_MS });
  const { certificate, key } = await next.stored();
  writeFileSync(join(path, 'ca.crt'), certificate);
  await expect(authority.maintain(signal)).rejects.toThrow('the key does not belong to the certificate');
  expect(authority.material().ca!.toString()).toBe(earlier);
  writeFileSync(join(path, 'ca.key'), key);
  await authority.maintain(signal);

  const { ca, identity } = authority.material();
  expect(ca!.toString()).toBe(certificate);
  expect(new X509Certificate(identity!.certificate).verify(new X509Certificate(certificate).publicKey)).toBe(true);
  expect(splitCertificates(server.published)).toEqual([certificate, earlier]);
});

test('podwire-ipam renews its own certificate at half of its life, and expired authorities are published no longer', async () => {
  const { authority } = await open();
  const first = authority.material().identity!.certificate.toString();
  clock.advance(44 * DAY_MS);
  await authority.maintain(signal);
  expect(authority.material().identity!.certificate.toString()).toBe(first);

  clock.advance(2 * DAY_MS);
  await authority.maintain(signal);
  expect(authority.material().identity!.certificate.toString()).not.toBe(first);

  const { certificate: expired } = await selfSignedServer();
  server.published = `${expired}\n`;
  await authority.maintain(signal);
  expect(server.published).toBe(stored());
});

test.each(['ca.crt', 'ca.key'])('a directory without its %s is refused, and stays as it is', async (name) => {
  await open();
  rmSync(join(path, name));

  await expect(open()).rejects.toThrow(`${name} does not exist; restore it`);
});

test('a certificate of no authority, and a key of another kind, are refused', async () => {
  const leaf = await selfSignedServer();
  store(leaf);
  await expect(open()).rejects.toThrow('the certificate is not one of an authority');
});

async function start(): Promise<RunningService> {
  const env = {
    PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
    PODWIRE_IPAM_NODE_TOKENS: 'true',
    PODWIRE_IPAM_AUTHORITY_DIRECTORY: path,
  };
  const service = await place.start(env, undefined, () => server.connect());
  ends.push(() => service.stop());
  return service;
}

test('a second start finds the authority of the first, which nodes trust', async () => {
  const first = await start();
  const before = server.published;
  await first.stop();
  ends.pop();

  await start();
  expect(server.published).toBe(before);
});
