import { createPrivateKey, X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { TestServers } from '@podwire/shared/testing/server';
import { certificateSource } from '@podwire/shared/testing/certificates';
import { Authority } from '@podwire/shared/tls/authority';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Fakes } from '../testing/ctl.js';

let fakes: Fakes;
let directory: string;

beforeEach(() => {
  fakes = new Fakes();
  directory = join(fakes.folder, 'certificates');
});
afterEach(() => fakes.clear());

const create = (...args: readonly string[]) =>
  fakes.podwirectl('certificates', 'create', '--directory', directory, ...args);
const content = (name: string) => readFileSync(join(directory, name), 'utf8');
const certificate = (name: string) => new X509Certificate(content(name));

describe('a new authority', () => {
  test('signs the ordered certificates, and the output names files and settings', async () => {
    const { exitCode, stdout } = await create(
      ...'--server --node worker-1 --node worker-2 --operator alice --reader dashboard --days 30'.split(' '),
    );

    expect(exitCode).toBe(0);
    expect(readdirSync(directory).sort()).toEqual(
      ['ca', 'node-worker-1', 'node-worker-2', 'operator-alice', 'podwire-ipam', 'reader-dashboard'].flatMap((name) => [
        `${name}.crt`,
        `${name}.key`,
      ]),
    );
    expect(statSync(directory).mode & 0o777).toBe(0o700);
    for (const name of readdirSync(directory)) expect(statSync(join(directory, name)).mode & 0o777).toBe(0o600);
    const authority = certificate('ca.crt');
    for (const name of ['podwire-ipam', 'node-worker-1', 'node-worker-2', 'operator-alice', 'reader-dashboard'])
      expect(certificate(`${name}.crt`).verify(authority.publicKey)).toBe(true);
    expect(certificate('node-worker-2.crt').subject).toBe('O=podwire:node\nCN=worker-2');
    expect(certificate('podwire-ipam.crt').subjectAltName).toBe('DNS:podwire-ipam');
    const days = (Date.parse(certificate('operator-alice.crt').validTo) - Date.now()) / 86_400_000;
    expect(days).toBeGreaterThan(29.9);
    expect(days).toBeLessThan(30.1);
    expect(stdout).toMatch(/^ca\.crt +authority, new +\d/m);
    expect(stdout).toContain(`PODWIRE_IPAM_TLS_CLIENT_CA_FILE  ${directory}/ca.crt\n`);
    expect(stdout).toContain(`PODWIRE_NODE_IPAM_TLS_CERT_FILE  ${directory}/node-worker-1.crt\n`);
    expect(stdout).toContain(`--ipam-key   ${directory}/reader-dashboard.key\n`);
  });

  test('is used again for later certificates', async () => {
    await create('--server');
    const ca = content('ca.crt');

    const { stdout } = await create('--operator', 'alice', '-o', 'json');

    expect(content('ca.crt')).toBe(ca);
    expect(JSON.parse(stdout)).toMatchObject({
      directory,
      authority: { isNew: false },
      certificates: [
        {
          role: 'operator',
          name: 'alice',
          settings: { '--ipam-cert': `${directory}/operator-alice.crt` },
        },
      ],
    });
  });

  test('is made once by commands at once', async () => {
    const names = ['a', 'b', 'c', 'd'];
    const outcomes = await Promise.all(names.map((name) => create('--operator', name)));

    const done = names.filter((_, index) => outcomes[index]?.exitCode === 0);
    expect(done.length).toBeGreaterThan(0);
    const authority = certificate('ca.crt');
    for (const name of done) expect(certificate(`operator-${name}.crt`).verify(authority.publicKey)).toBe(true);
    for (const { exitCode, stderr } of outcomes)
      if (exitCode !== 0) expect(stderr).toMatch(/repeat the command|ca.crt does not exist/);
    expect(readdirSync(directory).filter((name) => name.startsWith('.'))).toEqual([]);
  });
});

describe('existing files', () => {
  test('are replaced only with --yes; the authority never', async () => {
    await create('--operator', 'alice');
    const [ca, key] = [content('ca.key'), content('operator-alice.key')];

    const preview = await create('--operator', 'alice', '--operator', 'bob');
    expect(preview).toMatchObject({
      exitCode: 2,
      stdout: expect.stringMatching(/would be replaced:\nFILE\noperator-alice\.key\noperator-alice\.crt\n$/),
      stderr: expect.stringMatching(/to execute it: podwirectl certificates create .*--operator bob --yes\n$/),
    });
    expect([content('operator-alice.key'), existsSync(join(directory, 'operator-bob.key'))]).toEqual([key, false]);

    expect(await create('--operator', 'alice', '--yes')).toMatchObject({ exitCode: 0 });
    expect(content('operator-alice.key')).not.toBe(key);
    expect(content('ca.key')).toBe(ca);
  });
});

describe('the authority of another directory', () => {
  test('signs, and its certificate is copied without its key', async () => {
    const own = join(fakes.folder, 'authority');
    await fakes.podwirectl('certificates', 'create', '--directory', own, '--server');

    expect(await create('--authority', own, '--operator', 'alice')).toMatchObject({ exitCode: 0 });
    expect(readdirSync(directory).sort()).toEqual(['ca.crt', 'operator-alice.crt', 'operator-alice.key']);
    expect(content('ca.crt')).toBe(readFileSync(join(own, 'ca.crt'), 'utf8'));

    const other = join(fakes.folder, 'other');
    await fakes.podwirectl('certificates', 'create', '--directory', other, '--server');
    expect(await create('--authority', other, '--reader', 'bob')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('is of another authority; use another --directory'),
    });
  });

  test('may have its key in the form of SEC 1, as cert-manager stores it', async () => {
    await create('--server');
    const key = createPrivateKey(content('ca.key')).export({ type: 'sec1', format: 'pem' });
    writeFileSync(join(directory, 'ca.key'), key);

    expect(await create('--operator', 'alice')).toMatchObject({ exitCode: 0 });
    expect(certificate('operator-alice.crt').verify(certificate('ca.crt').publicKey)).toBe(true);
  });

  test('is not made', async () => {
    expect(await create('--authority', join(fakes.folder, 'none'), '--operator', 'alice')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringContaining('ca.crt does not exist; restore it, or use another directory'),
    });
    expect(existsSync(directory)).toBe(false);
  });
});

describe('an authority that cannot be used', () => {
  async function stored(untilMs = Date.now() + 86_400_000): Promise<void> {
    const { certificate: crt, key } = await (
      await Authority.create('test', { fromMs: Date.now() - 86_400_000, untilMs })
    ).stored();
    mkdirSync(directory);
    writeFileSync(join(directory, 'ca.crt'), crt);
    writeFileSync(join(directory, 'ca.key'), key);
  }

  test.each<[string, () => void | Promise<void>, RegExp]>([
    ['without its key', () => rmSync(join(directory, 'ca.key')), /ca\.key does not exist; restore it/],
    ['without its certificate', () => rmSync(join(directory, 'ca.crt')), /ca\.crt does not exist; restore it/],
    [
      'with a damaged key',
      () => writeFileSync(join(directory, 'ca.key'), 'key'),
      /cannot be used: .*; restore ca\.crt and ca\.key/,
    ],
    ['with a damaged certificate', () => writeFileSync(join(directory, 'ca.crt'), 'x'), /cannot be used: /],
    [
      'with the key of another',
      async () => {
        const other = await Authority.create('other', { fromMs: 0, untilMs: Date.now() + 86_400_000 });
        writeFileSync(join(directory, 'ca.key'), (await other.stored()).key);
      },
      /the key does not belong to the certificate/,
    ],
    [
      'that is a client certificate',
      async () => {
        const { certificate: crt, key } = await (
          await Authority.create('other', { fromMs: 0, untilMs: Date.now() + 86_400_000 })
        ).issueServer({ fromMs: 0, untilMs: Date.now() + 86_400_000 });
        writeFileSync(join(directory, 'ca.crt'), crt);
        writeFileSync(join(directory, 'ca.key'), key);
      },
      /the certificate is not one of an authority/,
    ],
  ])('%s', async (_, damage, reason) => {
    await stored();
    await damage();
    const before = readdirSync(directory);

    expect(await create('--operator', 'alice')).toMatchObject({ exitCode: 2, stderr: expect.stringMatching(reason) });
    expect(readdirSync(directory)).toEqual(before);
  });

  test('that has expired, or ends before the certificate would', async () => {
    await stored(Date.now() - 1000);
    expect(await create('--operator', 'alice')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringMatching(/ca\.crt expired at \d/),
    });
    rmSync(directory, { recursive: true });
    await stored(Date.now() + 9.5 * 86_400_000);
    expect(await create('--operator', 'alice', '--days', '10')).toMatchObject({
      exitCode: 2,
      stderr: expect.stringMatching(/--days 10: the authority ends at .*; use at most 9/),
    });
    expect(await create('--operator', 'alice')).toMatchObject({ exitCode: 0 });
    expect(certificate('operator-alice.crt').validTo).toBe(certificate('ca.crt').validTo);
  });
});

test('a directory that cannot be written is named', async () => {
  writeFileSync(directory, '');

  expect(await create('--server')).toMatchObject({
    exitCode: 1,
    stderr: expect.stringMatching(/certificates.*: cannot be/),
  });
});

test.each<[string, RegExp]>([
  ['', /certificates: none is requested; add --server or --node NAME/],
  ['--node ../a', /--node "\.\.\/a" is not a name/],
  ['--operator a/b', /is not a name/],
  ['--server --days 0', /is not a whole number from 1 to 3650/],
])('wrong arguments: %s', async (args, reason) => {
  const { exitCode, stderr } = await create(...args.split(' ').filter((word) => word !== ''));
  expect([exitCode, stderr]).toEqual([2, expect.stringMatching(reason)]);
  expect(existsSync(directory)).toBe(false);
});

test('a server and an operator with these files talk to each other', async () => {
  const servers = new TestServers();
  try {
    await create('--server', '--operator', 'alice');
    const file = (name: string) => ({ setting: name, path: join(directory, name) });
    const identity = { certificate: file('podwire-ipam.crt'), key: file('podwire-ipam.key') };
    const { source } = certificateSource({ ca: file('ca.crt'), identity });
    const { addresses } = await servers.serve({ addresses: ['127.0.0.1:0'], certificates: source });
    const words = ['--ipam', addresses[0]!];
    for (const [option, name] of [
      ['--ipam-ca', 'ca.crt'],
      ['--ipam-cert', 'operator-alice.crt'],
      ['--ipam-key', 'operator-alice.key'],
    ] as const)
      words.push(option, join(directory, name));

    const { exitCode, stdout } = await fakes.podwirectl(...words, 'describe', 'ippool', 'web', '-o', 'json');
    expect([exitCode, JSON.parse(stdout).pool.name]).toEqual([0, 'web']);
  } finally {
    await servers.clear();
  }
});
