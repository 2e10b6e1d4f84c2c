import { X509Certificate } from 'node:crypto';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { EnrolmentServiceService } from '@podwire/proto/podwire/ipam/v1/enrolment';
import { NodeServiceService, ReleaseTunnelAddressRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { certificateSource, selfSignedServer, signingRequest } from '@podwire/shared/testing/certificates';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { Authority, type IssuedCertificate } from '@podwire/shared/tls/authority';
import { AuthorityDirectory } from '@podwire/shared/tls/authority-directory';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import { splitCertificates, type TlsFiles } from '@podwire/shared/tls/tls-files';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { KubernetesApi } from '../kubernetes/api.js';
import { AuthorityConfigMap } from '../kubernetes/authority-config-map.js';
import type { RunningService } from '../service.js';
import { EnrolmentApi, NAMESPACE } from '../testing/enrolment-api.js';
import { Place } from '../testing/service.js';
import { OwnAuthority } from './own-authority.js';

/** podwire-ipam's authority, and nodes that get certificates of it, with a double of the API server. */

const DAY_MS = 86_400_000;
const { signal } = new AbortController();

let folder: string;
let path: string;
let server: EnrolmentApi;
let api: KubernetesApi;
let place: Place;
let clock: ManualClock;
const ends: (() => unknown)[] = [];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-enrolment-'));
  path = join(folder, 'storage', 'authority');
  server = await EnrolmentApi.start(join(folder, 'account'));
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

test('a replaced authority takes over without a restart, and the earlier certificates stay valid', async () => {
  const { authority } = await open();
  const earlier = await authority.issueForNode('worker-1', (await signingRequest()).request);
  const next = await Authority.create('next', { fromMs: Date.now() - 1000, untilMs: Date.now() + DAY_MS });
  const { certificate, key } = await next.stored();
  writeFileSync(join(path, 'ca.crt'), certificate);
  await expect(authority.maintain(signal)).rejects.toThrow('the key does not belong to the certificate');
  expect(authority.material().ca!.toString()).toBe(earlier.authorities);
  writeFileSync(join(path, 'ca.key'), key);
  await authority.maintain(signal);

  const trusted = splitCertificates(authority.material().ca!.toString());
  expect(trusted).toEqual([...splitCertificates(certificate), ...splitCertificates(earlier.authorities)]);
  expect(splitCertificates(server.published)).toEqual(trusted);
  const renewed = await authority.issueForNode('worker-1', (await signingRequest()).request);
  expect(new X509Certificate(renewed.certificate).verify(new X509Certificate(certificate).publicKey)).toBe(true);
  expect(renewed.authorities).toBe(trusted.join(''));
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

test('a node’s certificate has its name and role whatever the request says, and does not outlive the authority', async () => {
  const until = Math.floor(Date.now() / 1000) * 1000 + DAY_MS;
  const short = await Authority.create('short', { fromMs: Date.now() - 1000, untilMs: until });
  store(await short.stored());
  const { authority } = await open();

  const { request } = await signingRequest();
  const { subject, validTo } = new X509Certificate((await authority.issueForNode('worker-1', request)).certificate);

  expect(subject).toBe('O=podwire:node\nCN=worker-1');
  expect(Date.parse(validTo)).toBe(until);
});

test.each([
  ['noise', () => Promise.resolve(Buffer.from('no request'))],
  ['a key on another curve', () => signingRequest('P-384').then(({ request }) => request)],
  [
    'a broken signature',
    async () => {
      const { request } = await signingRequest();
      request.writeUInt8(request.readUInt8(request.length - 1) ^ 1, request.length - 1);
      return request;
    },
  ],
])('no certificate is issued for %s', async (_, make) => {
  const { authority } = await open();

  await expect(authority.issueForNode('worker-1', await make())).rejects.toThrow();
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

const POOLS = PoolServiceService.getPool;
const ISSUE = EnrolmentServiceService.issueNodeCertificate;
const NODE_USER = `system:serviceaccount:${NAMESPACE}:podwire-node`;

async function start(): Promise<RunningService> {
  const env = {
    PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
    PODWIRE_IPAM_ENROLMENT_LISTEN: '127.0.0.1:0',
    PODWIRE_IPAM_AUTHORITY_DIRECTORY: path,
  };
  const service = await place.start(env, undefined, () => server.connect());
  ends.push(() => service.stop());
  return service;
}

function peer(address: string, files: TlsFiles): Peer {
  const made = new Peer('podwire-ipam', address, {
    tls: { certificates: certificateSource(files).source, serverName: IPAM_SERVER_NAME },
  });
  ends.push(() => made.close());
  return made;
}

const limits = () => ({ deadlineMs: Date.now() + 10_000 });
const named = (name: string, content: string) => {
  const file = { setting: name, path: join(folder, name) };
  writeFileSync(file.path, content);
  chmodSync(file.path, 0o600);
  return file;
};

test('a node enrols with its token, and may then act for itself', async () => {
  const { addresses } = await start();
  const [, network, enrolment] = addresses;
  server.tokens.set('good', { username: NODE_USER, audience: 'podwire-ipam', node: 'worker-1' });
  server.tokens.set('other', { username: `${NODE_USER}-2`, audience: 'podwire-ipam', node: 'worker-1' });
  const ca = named('ca.crt', server.published);
  const client = peer(enrolment!, { ca, identity: undefined });
  const { request, key } = await signingRequest();
  const issue = (token: string, certificateSigningRequest = request) =>
    client.call(ISSUE, { certificateSigningRequest, token }, limits());

  await expect(issue('other')).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  await expect(issue('wrong token')).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
  await expect(issue('good', Buffer.alloc(5000))).rejects.toMatchObject({ code: 'INVALID_REQUEST' });
  await expect(issue('good', Buffer.from('x'))).rejects.toThrow('is not a signing request (PKCS #10)');
  // Nothing else is served there.
  await expect(client.call(POOLS, { name: 'default' }, limits())).rejects.toMatchObject({ code: 'UNIMPLEMENTED' });

  const { certificate, authorities } = await issue('good');
  expect(authorities).toBe(server.published);
  const node = peer(network!, {
    ca,
    identity: { certificate: named('tls.crt', certificate), key: named('tls.key', key) },
  });
  await expect(node.call(POOLS, { name: 'default' }, limits())).resolves.toMatchObject({ pool: { name: 'default' } });
  const tunnel = (nodeName: string) =>
    node.call(NodeServiceService.releaseTunnelAddress, ReleaseTunnelAddressRequest.fromPartial({ nodeName }), limits());
  await expect(tunnel('worker-2')).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  // A client without a certificate gets no connection where one is required.
  const limited = { deadlineMs: Date.now() + 3000 };
  await expect(
    peer(network!, { ca, identity: undefined }).call(POOLS, { name: 'default' }, limited),
  ).rejects.toBeDefined();
});

test('a second start finds the authority of the first, so that nodes keep their certificates', async () => {
  const first = await start();
  const before = server.published;
  await first.stop();
  ends.pop();

  await start();
  expect(server.published).toBe(before);
});
