import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { commit, never, put, EtcdFixture, untilAnswered } from '../testing/etcd-faults.js';
import { CertificateAuthority, type EtcdServer, type TlsFiles } from '../testing/etcd-server.js';
import type { EtcdStore } from './etcd-store.js';

/** Certificates that are replaced on the disk while the process runs, and etcd restarts in the middle of it. */

let scene: EtcdFixture;
let directory: string;
beforeEach(() => {
  scene = new EtcdFixture();
  directory = mkdtempSync(join(tmpdir(), 'podwire-etcd-certificates-'));
  scene.onEnd(() => rmSync(directory, { recursive: true, force: true }));
});
afterEach(() => scene.end());

const own = (): TlsFiles => ({
  ca: join(directory, 'own.ca'),
  cert: join(directory, 'own.crt'),
  key: join(directory, 'own.key'),
});

function copy(from: TlsFiles, ...names: readonly (keyof TlsFiles)[]): void {
  for (const name of names) copyFileSync(from[name], own()[name]);
}

const withOwnFiles = () => ({
  credentials: {
    caFile: own().ca,
    certFile: own().cert,
    keyFile: own().key,
    username: undefined,
    passwordFile: undefined,
  },
  dialTimeoutMs: 2000,
});

/** The server restarts, and the store has noticed: its next request needs a new connection. */
async function losesItsServer(store: EtcdStore, server: EtcdServer): Promise<void> {
  await server.stop();
  await expect(store.commit(put('/lost'), never)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  await server.restart();
}

describe('while the files are being replaced', () => {
  it.each<[string, RegExp, (next: TlsFiles) => void]>([
    ['the certificate is there before its key', /KEY_FILE .*does not belong/, (next) => copy(next, 'cert')],
    ['the key is there before its certificate', /KEY_FILE .*does not belong/, (next) => copy(next, 'key')],
    ['the key is gone', /KEY_FILE .*cannot be read/, () => rmSync(own().key)],
    ['the certificate is empty yet', /CERT_FILE .*without a certificate/, () => writeFileSync(own().cert, '')],
    ['the authority is empty yet', /CA_FILE .*without a certificate/, () => writeFileSync(own().ca, '')],
  ])('the former files are used: %s', async (_, told, half) => {
    const authority = new CertificateAuthority(join(directory, 'authority'));
    const server = await scene.start({ tls: authority.issue('server') });
    copy(authority.issue('before'), 'ca', 'cert', 'key');
    const store = await scene.open([server], withOwnFiles());
    await commit(store, put('/a'));

    const next = authority.issue('next');
    half(next);
    await losesItsServer(store, server);
    await untilAnswered(() => commit(store, put('/b')));
    const refused = () => scene.events.flatMap((event) => (event.type === 'credentialsRefused' ? [event.failure] : []));
    expect(refused().map(({ message }) => message)).toEqual([expect.stringMatching(told)]);

    copy(next, 'ca', 'cert', 'key');
    await losesItsServer(store, server);
    await untilAnswered(() => commit(store, put('/c')));
    expect(refused()).toHaveLength(1);
  });

  it('the new files are used once they are complete, though etcd refuses the former ones', async () => {
    const authority = (name: string): CertificateAuthority => new CertificateAuthority(join(directory, name));
    const files = authority('server').issue('server');
    const server = await scene.start({ tls: files });
    copy(files, 'ca', 'cert', 'key');
    const store = await scene.open([server], withOwnFiles());
    await commit(store, put('/a'));

    await server.stop();
    // Another authority, in the files of the first: for the server's own certificate, and for the clients' certificates.
    authority('server').issue('server');
    await server.restart();
    copy(files, 'ca', 'cert');
    await expect(store.commit(put('/b'), never)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    copy(files, 'key');
    await untilAnswered(() => commit(store, put('/c')));
    expect((await store.read(['/a', '/b', '/c'], never)).records.map(({ key }) => key)).toEqual(['/a', '/c']);
  });
});

describe('a certificate that has expired', () => {
  it('of our own is named once a new connection is wanted, and its successor is used', async () => {
    const authority = new CertificateAuthority(join(directory, 'authority'));
    const server = await scene.start({ tls: authority.issue('server') });
    copy(authority.issueExpired('before'), 'ca', 'cert', 'key');
    const ofOwn = /CERT_FILE has expired at 2020-01-02T00:00:00\.000Z: renew it/;
    const failure = { code: 'STORE_UNAVAILABLE', message: expect.stringMatching(ofOwn) };
    await expect(scene.open([server], withOwnFiles())).rejects.toMatchObject(failure);

    copy(authority.issue('next'), 'cert', 'key');
    await commit(await scene.open([server], withOwnFiles()), put('/a'));
  });

  it('of etcd is named as etcd’s, and its successor is taken without a restart of anybody', async () => {
    const authority = new CertificateAuthority(join(directory, 'authority'));
    const server = await scene.start({ tls: authority.issue('server') });
    copy(authority.issue('own'), 'ca', 'cert', 'key');
    const store = await scene.open([server], withOwnFiles());
    await server.stop();
    authority.issueExpired('server');
    // etcdctl cannot see that it is up.
    const restarted = server.restart();
    const said = () => store.read(['/a'], never).then(() => 'answered', String);
    await expect
      .poll(said)
      .toMatch(/does not answer \(.*\): the certificate that etcd shows, .* has expired: renew it/);
    authority.issue('server');
    await restarted;
    await untilAnswered(() => commit(store, put('/a')));
  });
});

describe('files that cannot be used at the start', () => {
  it('are refused by their settings', async () => {
    const authority = new CertificateAuthority(join(directory, 'authority'));
    copy(authority.issue('one'), 'ca', 'cert');
    copy(authority.issue('another'), 'key');
    await expect(scene.open([{ url: 'https://127.0.0.1:1' }], withOwnFiles())).rejects.toMatchObject({
      code: 'INVALID_SETTINGS',
      message: expect.stringMatching(/PODWIRE_IPAM_ETCD_KEY_FILE names a key that does not belong to the certificate/),
    });
  });
});
