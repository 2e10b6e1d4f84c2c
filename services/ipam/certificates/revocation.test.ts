import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { CertificateServiceService, RevokedCertificate } from '@podwire/proto/podwire/ipam/v1/certificate';
import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { WatchKind, WatchRequest, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { Peer } from '@podwire/shared/rpc/client';
import { certificateSource, CertificateFolder } from '@podwire/shared/testing/certificates';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import type { TlsFiles } from '@podwire/shared/tls/tls-files';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { EtcdServer } from '../engine/testing/etcd-server.js';
import { decodeRecord } from '../records/json/registry.js';
import { failureOf } from '../testing/records.js';
import { Caller, Place } from '../testing/service.js';
import { TestView } from '../testing/test-view.js';
import { revoke, revokedCertificates } from './revocation.js';

/** Certificates that end before they expire. */

const { revokeCertificate, listRevokedCertificates, restoreCertificate } = CertificateServiceService;
const { getPool } = PoolServiceService;
const { signal } = new AbortController();
const limits = () => ({ deadlineMs: Date.now() + 10_000 });
const denied = { code: 'ACCESS_DENIED', message: 'client certificate of alice: it is revoked; connect with another' };

let root: Place;
let folder: CertificateFolder;
let clock: ManualClock;
const ends: (() => unknown)[] = [];

beforeEach(async () => {
  root = new Place();
  folder = await CertificateFolder.create(join(root.directory, 'certificates'));
  clock = new ManualClock();
  clock.advance(Date.now() - clock.nowMs());
});

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
  root.remove();
});

async function start(rest: Readonly<Record<string, string>> = {}) {
  const place = new Place();
  ends.push(() => place.remove());
  const { ca, identity } = await folder.server();
  const env = {
    PODWIRE_IPAM_LISTEN: `${place.address},127.0.0.1:0`,
    PODWIRE_IPAM_TLS_CERT_FILE: identity!.certificate.path,
    PODWIRE_IPAM_TLS_KEY_FILE: identity!.key.path,
    PODWIRE_IPAM_TLS_CLIENT_CA_FILE: ca!.path,
    ...rest,
  };
  const service = await place.start(env, rest.PODWIRE_IPAM_STORE === 'etcd' ? undefined : clock);
  ends.push(() => service.stop());
  const local = new Caller(place.address);
  ends.push(() => local.close());
  return { address: service.addresses[1]!, local: local.peer };
}

function peer(address: string, files: TlsFiles): Peer {
  const tls = { certificates: certificateSource(files).source, serverName: IPAM_SERVER_NAME };
  const made = new Peer('podwire-ipam', address, { tls });
  ends.push(() => made.close());
  return made;
}

const serialNumberOf = ({ identity }: TlsFiles): string =>
  new X509Certificate(readFileSync(identity!.certificate.path)).serialNumber;
const entry = (serialNumber: string) => ({
  certificate: RevokedCertificate.fromPartial({ serialNumber, name: 'alice' }),
});

test('a revoked certificate ends calls and streams of open connections, and its restoration permits them again', async () => {
  const { address, local } = await start();
  const files = await folder.client('operator', 'alice');
  const serialNumber = serialNumberOf(files);
  const alice = peer(address, files);
  const call = () => alice.call(getPool, { name: 'default' }, limits());
  const bob = peer(address, await folder.client('operator', 'bob'));
  const request = WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_NODES] });
  const stream = alice.stream(WatchServiceService.watch, request, signal);
  await stream.next();
  await call();

  const written = serialNumber.toLowerCase().replace(/(..)(?=.)/g, '$1:');
  await local.call(revokeCertificate, entry(written), limits());
  await local.call(revokeCertificate, entry(serialNumber), limits());

  await expect(call()).rejects.toMatchObject(denied);
  const next = stream.next();
  clock.advance(5000);
  await expect(next).rejects.toMatchObject(denied);
  await bob.call(getPool, { name: 'default' }, limits());
  const { certificates } = await bob.call(listRevokedCertificates, {}, limits());
  expect(certificates).toMatchObject([{ serialNumber: serialNumber.replace(/^0+/, ''), name: 'alice' }]);

  await local.call(restoreCertificate, { serialNumber }, limits());
  await expect(local.call(restoreCertificate, { serialNumber }, limits())).rejects.toMatchObject({
    code: 'CERTIFICATE_NOT_FOUND',
  });
  await call();
  await expect(local.call(revokeCertificate, entry('no number'), limits())).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
  });
});

test('every replica refuses it, also one that starts later', async () => {
  const etcd = await EtcdServer.start({});
  ends.push(() => etcd.dispose());
  const store = { PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url };
  const [first, second] = [await start(store), await start(store)];
  const files = await folder.client('operator', 'alice');
  const alice = peer(second.address, files);
  await alice.call(getPool, { name: 'default' }, limits());

  await first.local.call(revokeCertificate, entry(serialNumberOf(files)), limits());

  const outcome = () => alice.call(getPool, { name: 'default' }, limits()).catch((error: unknown) => error);
  await expect.poll(outcome).toMatchObject(denied);
  const third = await start(store);
  await expect(peer(third.address, files).call(getPool, { name: 'default' }, limits())).rejects.toMatchObject(denied);
});

test('expired entries make room, and a list that cannot be read lets no certificate pass', () => {
  const entryOf = (index: number) => ({ serialNumber: String(index + 1), name: '', revokedAtMs: 1, expiresAtMs: 100 });
  const view = new TestView([
    { kind: 'revokedCertificates', value: Array.from({ length: 2000 }, (_, at) => entryOf(at)) },
  ]);
  const added = { serialNumber: 'AB', name: '', revokedAtMs: 99, expiresAtMs: undefined };
  expect(failureOf(() => revoke(view, added)).code).toBe('STORE_LIMIT');
  const { changes } = revoke(view, { ...added, revokedAtMs: 100 });
  expect(changes).toMatchObject([{ type: 'put', record: { value: [{ serialNumber: 'AB' }] } }]);

  view.setAside({ kind: 'revokedCertificates' }, 'torn');
  expect(failureOf(() => revokedCertificates(view)).code).toBe('STORE_CORRUPT');
  const torn = Buffer.from('{"certificates":[{"serialNumber":"x y","revokedAtMs":1}]}');
  expect(() => decodeRecord('key', { kind: 'revokedCertificates' }, torn)).toThrow('serialNumber');
});
