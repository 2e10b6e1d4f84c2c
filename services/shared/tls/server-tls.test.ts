import { copyFileSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from 'node:tls';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import type { AccessRequest } from '../rpc/access.js';
import { certificateSource, CertificateFolder, validity } from '../testing/certificates.js';
import { ManualClock } from '../testing/manual-clock.js';
import { callLimits, echoPool, Gate, GET_POOL, TestServers } from '../testing/server.js';
import { IPAM_SERVER_NAME } from './caller.js';
import type { TlsFiles } from './tls-files.js';

/** A server and clients with certificates, over TCP. */

let servers: TestServers;
let folder: CertificateFolder;
let requests: AccessRequest[];
let slow: Gate;
let serversCount = 0;

beforeEach(async () => {
  servers = new TestServers();
  folder = await CertificateFolder.create(join(servers.folder, 'certificates'));
  requests = [];
  slow = new Gate();
  serversCount = 0;
});

afterEach(() => servers.clear());

async function serve(files?: TlsFiles): Promise<string> {
  const { source } = certificateSource(files ?? (await folder.server()));
  const { addresses } = await servers.serve({
    addresses: ['127.0.0.1:0', servers.address(`ipam-${++serversCount}`)],
    certificates: source,
    getPool: async (request, call) => {
      if (request.name === 'slow') await slow.opened;
      return echoPool(request, call);
    },
    authorize: (request) => {
      requests.push(request);
      const { caller } = request;
      if (caller.kind === 'network' && caller.role === 'reader') throw new Failure('ACCESS_DENIED', 'readers may not');
    },
  });
  return addresses[0]!;
}

function call(address: string, files: TlsFiles | undefined, timeoutMs = 10_000) {
  const tls = files && { certificates: certificateSource(files).source, serverName: IPAM_SERVER_NAME };
  return servers.peer(address, { tls }).call(GET_POOL, { name: 'web' }, callLimits(timeoutMs));
}

/** Shorter than a test's time, longer than a handshake on a busy machine: the client retries a refused handshake until then. */
const REFUSAL_TIMEOUT_MS = 3000;

test('serves a client with a certificate, and knows its role and name', async () => {
  const address = await serve();

  const answer = await call(address, await folder.client('node', 'worker-1'));

  expect(answer.pool?.name).toBe('web');
  expect(requests.map(({ caller, path }) => [caller, path])).toEqual([
    [{ kind: 'network', role: 'node', name: 'worker-1' }, GET_POOL.path],
  ]);
});

test('refuses a call that the decision refuses, with its failure', async () => {
  const address = await serve();

  await expect(call(address, await folder.client('reader', 'dashboard'))).rejects.toMatchObject({
    code: 'ACCESS_DENIED',
    message: 'readers may not',
  });
});

test('asks no permission for a call over the unix socket', async () => {
  await serve();

  await expect(call(servers.address('ipam-1'), undefined)).resolves.toBeDefined();
  expect(requests).toEqual([]);
});

test.each([
  ['no certificate', () => Promise.resolve(folder.withoutCertificate())],
  ['an expired certificate', () => folder.client('operator', 'alice', validity({ byHours: -10 }))],
  ['a certificate that does not hold yet', () => folder.client('operator', 'alice', validity({ byHours: 10 }))],
  [
    'a certificate of another authority',
    async () => {
      const other = await CertificateFolder.create(join(servers.folder, 'other'));
      const { identity } = await other.client('operator', 'mallory');
      return { ...folder.withoutCertificate(), identity };
    },
  ],
] as const)('refuses the connection of a client with %s', async (_, filesOf) => {
  const address = await serve();

  await expect(call(address, await filesOf(), REFUSAL_TIMEOUT_MS)).rejects.toBeInstanceOf(Failure);
  expect(requests).toEqual([]);
});

test('refuses plain text, and a client refuses another server', async () => {
  const address = await serve();
  await expect(call(address, undefined, REFUSAL_TIMEOUT_MS)).rejects.toBeInstanceOf(Failure);

  const client = await folder.client('operator', 'alice');
  const impostor = await serve(await folder.client('node', 'worker-2'));
  await expect(call(impostor, client, REFUSAL_TIMEOUT_MS)).rejects.toBeInstanceOf(Failure);
  expect(requests).toEqual([]);
});

test.each([
  ['refuses TLS 1.1', 'TLSv1.1', false],
  ['accepts TLS 1.2', 'TLSv1.2', true],
  ['accepts TLS 1.3', 'TLSv1.3', true],
] as const)('%s', async (_, version, isAccepted) => {
  const [host, port] = (await serve()).split(':');
  const { certificate, key } = (await folder.client('reader', 'dashboard')).identity!;
  const identity = { cert: readFileSync(certificate.path), key: readFileSync(key.path) };

  const outcome = await new Promise<boolean>((resolve) => {
    const versions = { minVersion: version, maxVersion: version };
    const options = { host, port: Number(port), rejectUnauthorized: false, ALPNProtocols: ['h2'] };
    // This side's own OpenSSL refuses to offer TLS 1.1 at the usual security level.
    const socket = connect({ ...options, ...versions, ...identity, ciphers: 'DEFAULT@SECLEVEL=0' }, () => {
      socket.destroy();
      resolve(true);
    });
    socket.on('error', () => resolve(false));
  });

  expect(outcome).toBe(isAccepted);
});

/** Lets what waits for the clock run. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('uses replaced files for new connections, keeps the former ones while a pair does not match, and reports both', async () => {
  const files = await folder.server();
  const certificatePath = files.identity!.certificate.path;
  const clock = new ManualClock();
  const { source, lines } = certificateSource(files, clock);
  const certificates: Buffer[] = [];
  source.addIdentityCertificateListener((update) => certificates.push(update!.certificate));
  const client = await folder.client('node', 'worker-1');

  copyFileSync(client.identity!.certificate.path, certificatePath);
  clock.advance(10_000);
  await settled();
  clock.advance(10_000);
  await settled();
  expect(certificates).toHaveLength(1);
  expect(lines.filter(({ level }) => level === 'warn')).toHaveLength(1);

  await folder.server();
  clock.advance(10_000);
  await settled();
  expect(certificates).toHaveLength(2);
  expect(certificates[1]).not.toEqual(certificates[0]);
  expect(lines.at(-1)).toMatchObject({ msg: 'TLS certificates: read new ones; new connections use them' });
});

describe('a client whose certificate is renewed', () => {
  const names = () => requests.map(({ caller }) => (caller.kind === 'network' ? caller.name : caller.kind));

  /** A client that has made a call, and puts the identity of other files in the place of its own. */
  async function connected(files: TlsFiles) {
    const clock = new ManualClock();
    const tls = { certificates: certificateSource(files, clock).source, serverName: IPAM_SERVER_NAME };
    const peer = servers.peer(await serve(), { tls });
    const send = (name: string) => peer.call(GET_POOL, { name }, callLimits());
    await send('web');
    const renew = async ({ identity }: TlsFiles): Promise<void> => {
      for (const kind of ['certificate', 'key'] as const)
        copyFileSync(identity![kind].path, files.identity![kind].path);
      clock.advance(10_000);
      await settled();
    };
    return { send, renew };
  }

  test('shows the renewed one, and the call in flight is answered', async () => {
    const { send, renew } = await connected(await folder.client('node', 'worker-1'));
    const inFlight = send('slow');
    await expect.poll(names).toEqual(['worker-1', 'worker-1']);

    await renew(await folder.client('node', 'worker-2'));

    await expect.poll(() => send('web').then(() => names().at(-1))).toBe('worker-2');
    slow.open();
    await expect(inFlight).resolves.toHaveProperty('pool.name', 'slow');
  });

  test('keeps its connection where the server does not accept the renewed one', async () => {
    const { send, renew } = await connected(await folder.client('node', 'worker-1'));
    const other = await CertificateFolder.create(join(servers.folder, 'other'));

    await renew(await other.client('node', 'worker-2'));

    await expect(send('web')).resolves.toHaveProperty('pool.name', 'web');
    expect(names()).toEqual(['worker-1', 'worker-1']);
    await renew(await folder.client('node', 'worker-3'));
    await expect.poll(() => send('web').then(() => names().at(-1))).toBe('worker-3');
  });
});

test.each([
  ['nothing about a certificate with more than a tenth of its life left', -0.7, undefined],
  ['that a certificate expires', -0.9, /expires at .* renew it$/],
  ['that a certificate has expired', -1.1, /expired at .* renew it$/],
] as const)('reports %s', async (_, byHours, message) => {
  const files = await folder.server(validity({ byHours }));

  const { source, lines } = certificateSource(files);
  const ignore = (): void => undefined;
  source.addCaCertificateListener(ignore);
  source.removeCaCertificateListener(ignore);

  expect(lines.map(({ msg }) => msg)).toEqual(message === undefined ? [] : [expect.stringMatching(message)]);
});
