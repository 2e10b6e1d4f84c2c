import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { commit, never, put, EtcdFixture, untilAnswered } from '../testing/etcd-faults.js';
import { CertificateAuthority, type EtcdServer, type TlsFiles } from '../testing/etcd-server.js';

/** etcd's refusals, their failures, and the credentials that it requires. */

let scene: EtcdFixture;
let directory: string;
beforeEach(() => {
  scene = new EtcdFixture();
  directory = mkdtempSync(join(tmpdir(), 'podwire-etcd-files-'));
  scene.onEnd(() => rmSync(directory, { recursive: true, force: true }));
});
afterEach(() => scene.end());

const NONE = {
  caFile: undefined,
  certFile: undefined,
  keyFile: undefined,
  username: undefined,
  passwordFile: undefined,
};
const withTls = ({ ca, cert, key }: TlsFiles) => ({
  credentials: { ...NONE, caFile: ca, certFile: cert, keyFile: key },
});
/** Longer than anything else that waits here. */
const DIAL_MS = 600_000;

/** The system clock, but the dial timeout ends once a server has failed, so that its answer is reported. */
function afterFailure(): Clock {
  const failed = new AbortController();
  const sleep: Clock['sleep'] = async (durationMs, signal) => {
    if (durationMs !== DIAL_MS) {
      failed.abort();
      return systemClock.sleep(durationMs, signal);
    }
    await systemClock.sleep(durationMs, AbortSignal.any([signal, failed.signal]));
    return signal.aborted ? 'aborted' : 'elapsed';
  };
  return { ...systemClock, sleep };
}

const fails = (code: string, message: RegExp) => ({ code, message: expect.stringMatching(message) });

describe('limits', () => {
  const puts = (count: number, bytes = 1) =>
    Array.from({ length: count }, (_, index) => ({ key: `/many/${index}`, value: Buffer.alloc(bytes) }));

  it('are known: a larger transaction is refused, and changes nothing', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    expect(store.maxOperationsCount).toBe(127);
    const tooMany = store.commit({ comparisons: [], puts: puts(129), deletes: [] }, never);
    await expect(tooMany).rejects.toMatchObject(fails('STORE_LIMIT', /129 operations and etcd allows 128/));
    const tooLarge = store.commit({ comparisons: [], puts: puts(2, 800_000), deletes: [] }, never);
    await expect(tooLarge).rejects.toMatchObject(fails('STORE_LIMIT', /bytes and etcd allows 1572864/));
    expect(server.dump('/many/').size).toBe(0);
  });

  it('allow a transaction that is just within', async () => {
    const store = await scene.open([await scene.start()]);
    const comparisons = puts(store.maxOperationsCount).map(({ key }) => ({
      type: 'record' as const,
      key,
      modRevision: 0,
    }));
    expect((await store.commit({ comparisons, puts: puts(128), deletes: [] }, never)).committed).toBe(true);
    // 64 values of 24,500 bytes, with all that etcd adds, are less than 1.5 MiB by half a percent.
    expect((await store.commit({ comparisons: [], puts: puts(64, 24_450), deletes: [] }, never)).committed).toBe(true);
  });

  it('that are raised here but not there are refused by etcd, and the settings named', async () => {
    const server = await scene.start();
    const store = await scene.open([server], { maxOperationsCount: 1000, maxRequestBytes: 10_000_000 });
    const tooMany = store.commit({ comparisons: [], puts: puts(129), deletes: [] }, never);
    await expect(tooMany).rejects.toMatchObject(fails('STORE_LIMIT', /PODWIRE_IPAM_ETCD_MAX_TXN_OPS.*--max-txn-ops/));
    for (const bytes of [900_000, 2_000_000]) {
      const tooLarge = store.commit({ comparisons: [], puts: puts(2, bytes), deletes: [] }, never);
      await expect(tooLarge).rejects.toMatchObject(fails('STORE_LIMIT', /MAX_REQUEST_BYTES.*--max-request-bytes/));
    }
    expect(server.dump('/many/').size).toBe(0);
  });

  it('that are raised on both sides count', async () => {
    const server = await scene.start({ flags: ['--max-txn-ops=1000', '--max-request-bytes=10000000'] });
    const store = await scene.open([server], { maxOperationsCount: 1000, maxRequestBytes: 10_000_000 });
    expect((await store.commit({ comparisons: [], puts: puts(999, 9000), deletes: [] }, never)).committed).toBe(true);
  });

  it('of what one read may ask for do not exist', async () => {
    const store = await scene.open([await scene.start()]);
    for (let start = 0; start < 500; start += 100) {
      const some = Array.from({ length: 100 }, (_, index) => ({ key: `/r/${start + index}`, value: Buffer.from('1') }));
      await store.commit({ comparisons: [], puts: some, deletes: [] }, never);
    }
    const { records } = await store.read(
      Array.from({ length: 600 }, (_, index) => `/r/${index}`),
      never,
    );
    expect(records).toHaveLength(500);
    expect(records.map(({ key }) => key)).toEqual(records.map(({ key }) => key).sort());
  });
});

describe('a list that is larger than a message', () => {
  it('shows one moment, whatever is written and compacted meanwhile', async () => {
    const server = await scene.start();
    const store = await scene.open([server]);
    const filler = Buffer.alloc(3000);
    for (let start = 0; start < 3000; start += 100) {
      const some = Array.from({ length: 100 }, (_, index) => ({ key: `/l/${10_000 + start + index}`, value: filler }));
      await store.commit({ comparisons: [], puts: some, deletes: [] }, never);
    }
    const ends = ['/l/10000', '/l/11500', '/l/12999'];
    const stop = new AbortController();
    const writing = (async () => {
      for (let count = 0; !stop.signal.aborted; count++) {
        const value = Buffer.from(String(count));
        await commit(store, { comparisons: [], puts: ends.map((key) => ({ key, value })), deletes: [] });
        if (count % 50 === 49) server.compact();
        await sleep(1);
      }
    })();
    let moved = 0;
    for (let round = 0; round < 6; round++) {
      const { records, revision } = await untilAnswered(() => store.list('/l/', never));
      expect(records).toHaveLength(3000);
      const seen = records.filter(({ key }) => ends.includes(key));
      expect(new Set(seen.map(({ value }) => Buffer.from(value).toString())).size).toBe(1);
      expect(Math.max(...records.map(({ modRevision }) => modRevision))).toBeLessThanOrEqual(revision);
      if ((await store.revision(never)) > revision) moved++;
    }
    stop.abort();
    await writing;
    expect(moved).toBeGreaterThan(0);
  }, 60_000);
});

describe('a datastore that is full', () => {
  it('says so and how to go on; it can be read, and written again once there is space', async () => {
    const server = await scene.start({ flags: ['--quota-backend-bytes=8000000'] });
    const store = await scene.open([server]);
    const fill = async (): Promise<void> => {
      for (let count = 0; count < 200; count++) {
        await commit(store, put(`/f/${count % 4}`, 'x'.repeat(500_000)));
        // etcd looks at its size every 100 ms (`--backend-batch-interval`).
        await sleep(20);
      }
    };
    const full = fails('STORE_FULL', /--quota-backend-bytes/);
    await expect(fill()).rejects.toMatchObject({ ...full, retryable: false });
    await expect(store.commit(put('/g'), never)).rejects.toMatchObject(full);
    expect((await store.list('/f/', never)).records.length).toBeGreaterThan(0);
    expect(scene.events.map(({ type }) => type)).toEqual(['endpointChosen']);
    server.compact();
    server.ctl('defrag');
    server.ctl('alarm', 'disarm');
    expect(await untilAnswered(() => commit(store, put('/g')))).toBeGreaterThan(1);
  });
});

describe('TLS', () => {
  async function tlsServer(): Promise<{ server: EtcdServer; authority: CertificateAuthority; files: TlsFiles }> {
    const authority = new CertificateAuthority(join(directory, 'ca'));
    const files = authority.issue('podwire');
    return { server: await scene.start({ tls: files }), authority, files };
  }

  it('with certificates of both sides serves', async () => {
    const { server, files } = await tlsServer();
    const store = await scene.open([server], withTls(files));
    const watching = scene.watch(store, '/w/', await store.revision(never));
    await watching.waitForRevision(await commit(store, put('/w/1')));
    expect((await store.read(['/w/1'], never)).records).toHaveLength(1);
  });

  it.each<[string, RegExp, (ours: TlsFiles, theirs: TlsFiles) => TlsFiles]>([
    ['the client’s certificate', /_ETCD_CERT_FILE .*--trusted-ca-file/, (ours, theirs) => ({ ...theirs, ca: ours.ca })],
    ['the authority', /PODWIRE_IPAM_ETCD_CA_FILE/, (ours, theirs) => ({ ...ours, ca: theirs.ca })],
  ])('with another authority for %s is refused, and the settings named', async (_, named, mix) => {
    const { server, files } = await tlsServer();
    const theirs = new CertificateAuthority(join(directory, 'theirs')).issue('podwire');
    const opening = scene.open([server], {
      ...withTls(mix(files, theirs)),
      dialTimeoutMs: DIAL_MS,
      clock: afterFailure(),
    });
    await expect(opening).rejects.toMatchObject(fails('STORE_UNAVAILABLE', named));
  });

  it('without a certificate, or with http, is refused', async () => {
    const { server, files } = await tlsServer();
    const anonymous = { credentials: { ...NONE, caFile: files.ca }, dialTimeoutMs: 500 };
    await expect(scene.open([server], anonymous)).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
    const plain = { url: server.url.replace('https', 'http') };
    await expect(scene.open([plain], { dialTimeoutMs: 500 })).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' });
  });

  it('with files that are not there is refused, all of them named', async () => {
    const { server } = await tlsServer();
    const missing = (name: string): string => join(directory, name);
    const files = { ca: missing('a'), cert: missing('b'), key: missing('c') };
    await expect(scene.open([server], withTls(files))).rejects.toMatchObject(
      fails('INVALID_SETTINGS', /CA_FILE.*CERT_FILE.*KEY_FILE/),
    );
  });

  it('continues with new certificates, which are read when a connection is made', async () => {
    const { server, files } = await tlsServer();
    const store = await scene.open([server], withTls(files));
    await commit(store, put('/a'));
    await server.stop();
    // A new authority with new certificates, in the files of the old ones.
    new CertificateAuthority(join(directory, 'ca')).issue('podwire');
    await server.restart();
    expect(await untilAnswered(() => commit(store, put('/b')))).toBeGreaterThan(1);
  });
});

describe('users', () => {
  async function authServer(flags: readonly string[] = []): Promise<EtcdServer> {
    const server = await scene.start({ flags });
    server.ctl('user', 'add', 'root:secret');
    server.ctl('user', 'grant-role', 'root', 'root');
    server.ctl('user', 'add', 'podwire:pass');
    server.ctl('role', 'add', 'ipam');
    server.ctl('role', 'grant-permission', 'ipam', '--prefix=true', 'readwrite', '/calico/');
    server.ctl('role', 'grant-permission', 'ipam', '--prefix=true', 'readwrite', '/podwire/calico/');
    server.ctl('user', 'grant-role', 'podwire', 'ipam');
    server.ctl('auth', 'enable');
    return server;
  }

  function as(username: string, password: string) {
    const passwordFile = join(directory, 'password');
    writeFileSync(passwordFile, `${password}\n`);
    return { credentials: { ...NONE, username, passwordFile } };
  }

  it('may use their roles below the prefix, and get STORE_DENIED elsewhere', async () => {
    const store = await scene.open([await authServer()], as('podwire', 'pass'));
    const watching = scene.watch(store, '/calico/', await store.revision(never));
    await watching.waitForRevision(await commit(store, put('/calico/a', '1', 0)));
    expect((await store.list('/calico/', never)).records).toHaveLength(1);
    const denied = fails('STORE_DENIED', /grant it a role/);
    await expect(store.commit(put('/other'), never)).rejects.toMatchObject({ ...denied, retryable: false });
    await expect(store.list('/', never)).rejects.toMatchObject(denied);
  });

  it('are refused with a wrong password, and without one', async () => {
    const server = await authServer();
    const wrong = fails('STORE_DENIED', /PODWIRE_IPAM_ETCD_PASSWORD_FILE/);
    await expect(scene.open([server], as('podwire', 'guess'))).rejects.toMatchObject(wrong);
    await expect(scene.open([server])).rejects.toMatchObject(wrong);
  });

  it.each(['grpc_proxy', 'https_proxy', 'http_proxy'])('ask past the proxy of %s', async (variable) => {
    const server = await authServer();
    scene.onEnd(() => vi.unstubAllEnvs());
    vi.stubEnv(variable, 'http://127.0.0.1:1');
    vi.stubEnv('no_proxy', '');
    const store = await scene.open([server], as('podwire', 'pass'));
    const watching = scene.watch(store, '/calico/', await store.revision(never));
    await watching.waitForRevision(await commit(store, put('/calico/a')));
  });

  it('are refused where there are none', async () => {
    const opening = scene.open([await scene.start()], as('podwire', 'pass'));
    await expect(opening).rejects.toMatchObject(fails('STORE_DENIED', /auth enable/));
  });

  it('go on when etcd has forgotten their tokens', async () => {
    const server = await authServer();
    const store = await scene.open([server], as('podwire', 'pass'));
    const watching = scene.watch(store, '/calico/', await store.revision(never));
    await watching.waitForRevision(await commit(store, put('/calico/a')));
    await server.kill();
    await server.restart();
    await watching.waitForRevision(await untilAnswered(() => commit(store, put('/calico/b'))));
    expect(watching.seen.map(([, key]) => key)).toEqual(['/calico/a', '/calico/b']);
  });

  const asRoot = (server: EtcdServer, ...args: readonly string[]) => server.ctl('--user=root:secret', ...args);

  it('go on when users and roles change, which ends JSON web tokens', async () => {
    const [key, publicKey] = [join(directory, 'token.key'), join(directory, 'token.pub')];
    execFileSync('openssl', ['genrsa', '-out', key, '2048'], { stdio: 'pipe' });
    execFileSync('openssl', ['rsa', '-in', key, '-pubout', '-out', publicKey], { stdio: 'pipe' });
    const server = await authServer([`--auth-token=jwt,pub-key=${publicKey},priv-key=${key},sign-method=RS256,ttl=1h`]);
    const store = await scene.open([server], as('podwire', 'pass'));
    const watching = scene.watch(store, '/calico/', await store.revision(never));
    await watching.waitForRevision(await commit(store, put('/calico/a')));
    asRoot(server, 'role', 'add', 'other');
    await watching.waitForRevision(await commit(store, put('/calico/b')));
    asRoot(server, 'user', 'add', 'another:word');
    expect((await store.list('/calico/', never)).records).toHaveLength(2);
    expect(scene.events.map(({ type }) => type)).toEqual(['endpointChosen']);
  });

  it('go on with a new password once their file has it', async () => {
    const server = await authServer();
    const store = await scene.open([server], as('podwire', 'pass'));
    await commit(store, put('/calico/a'));
    asRoot(server, 'user', 'delete', 'podwire');
    asRoot(server, 'user', 'add', 'podwire:new');
    asRoot(server, 'user', 'grant-role', 'podwire', 'ipam');
    await expect(store.commit(put('/calico/b'), never)).rejects.toMatchObject({ code: 'STORE_DENIED' });
    as('podwire', 'new');
    expect(await untilAnswered(() => commit(store, put('/calico/b')))).toBeGreaterThan(1);
    expect((await store.list('/calico/', never)).records).toHaveLength(2);
  });
});
