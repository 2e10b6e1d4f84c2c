import {
  mkdtempSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  renameSync,
  writeFileSync,
} from 'node:fs';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { systemClock } from '@podwire/shared/runtime/clock';
import { Program } from '@podwire/shared/testing/program';
import { CertificateFolder, validity } from '@podwire/shared/testing/certificates';
import { createSigningRequest } from '@podwire/shared/tls/signing-request';
import { readTlsFiles } from '@podwire/shared/tls/tls-files';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { Fakes } from '../testing/ctl.js';
import { EnrolmentService } from '../testing/enrolment-service.js';
import { CertificateDirectory } from './certificate-directory.js';

/** The command in front of a real gRPC server over TLS. */

let fakes: Fakes;
let folder: string;
let service: EnrolmentService;

beforeEach(async () => {
  fakes = new Fakes();
  folder = mkdtempSync(join(tmpdir(), 'podwire-enrol-'));
  service = await EnrolmentService.create(folder);
});
afterEach(async () => {
  await fakes.clear();
  await service.stop();
  rmSync(folder, { recursive: true });
});

const enrol = (...args: readonly string[]) => fakes.podwirectl('certificates', 'enrol', ...service.options, ...args);
const stored = () => new CertificateDirectory(service.directory, systemClock).read();
const storedKey = () => readFileSync(join(service.directory, 'tls.key'), 'utf8');

/** Runs the command while `work` runs, and expects that it ends only afterwards. */
async function enrolDuring(work: (line: (text: string) => Promise<void>) => Promise<void>, ...args: readonly string[]) {
  let isEnded = false;
  const outcome = enrol(...args).finally(() => (isEnded = true));
  await work(async (text) => {
    await expect.poll(() => fakes.written.stderr).toContain(text);
    expect(isEnded).toBe(false);
  });
  return outcome;
}

/** A certificate of which a part of its life is over. */
async function storeOldCertificate(byHours: number): Promise<string> {
  const { answer } = service;
  service.answer = ({ certificateSigningRequest }) =>
    service.certificates.answer(certificateSigningRequest, 'worker-1', validity({ byHours }));
  expect(await enrol()).toMatchObject({ exitCode: 0 });
  service.answer = answer;
  service.tokens.length = 0;
  return storedKey();
}

describe('without a certificate', () => {
  test('gets one, which the processes of the node can use', async () => {
    await service.start();

    const { exitCode, stdout, stderr } = await enrol();

    expect([exitCode, stdout]).toEqual([
      0,
      expect.stringMatching(/^Node +worker-1\n.*\nCertificate +issued\nValid until +\d/m),
    ]);
    expect(stderr).toContain(`podwirectl: certificate in ${service.directory}: there is none; requesting one\n`);
    expect(service.tokens).toEqual(['token-1']);
    const named = (name: string) => ({ setting: name, path: join(service.directory, name) });
    const files = { ca: named('ca.crt'), identity: { certificate: named('tls.crt'), key: named('tls.key') } };
    expect(readTlsFiles(files).identity).toBeDefined();
    expect(readFileSync(join(service.directory, 'ca.crt'))).toEqual(readFileSync(service.caFile));
    expect(statSync(service.directory).mode & 0o777).toBe(0o700);
  });

  test('waits for the service, and logs the failure once', async () => {
    await service.start();
    await service.stop();

    const { exitCode, stderr } = await enrolDuring(async (line) => {
      await line('connection refused');
      await service.start();
    });

    expect(exitCode).toBe(0);
    expect(stderr.match(/connection refused/g)).toHaveLength(1);
    expect(stderr).toMatch(
      /^podwirectl: podwire-ipam at 127.0.0.1:\d+: .*; set another address with --address \(UNREACHABLE\); retrying$/m,
    );
  });

  test('waits for the token and the authorities', async () => {
    await service.start();
    service.removeToken();
    const ca = readFileSync(service.caFile);
    rmSync(service.caFile);

    const { exitCode, stderr } = await enrolDuring(async (line) => {
      await line(`--ca-file ${service.caFile}: cannot be read; create it`);
      writeFileSync(service.caFile, '');
      await line(`--ca-file ${service.caFile}: is empty`);
      writeFileSync(service.caFile, ca);
      await line(`--token-file ${service.tokenFile}: cannot be read; create it`);
      service.writeToken('token-2');
    });

    expect([exitCode, service.tokens]).toEqual([0, ['token-2']]);
    expect(stderr.match(/ENOENT/g)).toHaveLength(2);
  });

  test('reports the refusal of the service, and reads the token again for each request', async () => {
    await service.start();
    const { answer } = service;
    service.answer = async (request) => {
      if (request.token !== 'token-2') throw new Failure('ACCESS_DENIED', 'token: has expired; use the current one');
      return answer(request);
    };

    const { exitCode, stderr } = await enrolDuring(async (line) => {
      await line('token: has expired; use the current one (ACCESS_DENIED); retrying');
      service.writeToken('token-2');
    });

    expect([exitCode, service.tokens.at(-1)]).toEqual([0, 'token-2']);
    expect(stderr.match(/has expired/g)).toHaveLength(1);
  });

  test('does not trust a service of another authority, nor another server', async () => {
    await service.start();
    const other = await CertificateFolder.create(join(folder, 'other'));
    const ca = readFileSync(service.caFile);
    writeFileSync(service.caFile, readFileSync(other.caPath));

    const { exitCode } = await enrolDuring(async (line) => {
      await line(`its certificate is not signed by an authority of --ca-file ${service.caFile}`);
      await service.stop();
      await service.start({ files: await service.certificates.client('node', 'worker-2') });
      writeFileSync(service.caFile, ca);
      await line('its certificate is not one of podwire-ipam');
      await service.stop();
      await service.start({ files: await service.certificates.server(validity({ byHours: -10 })) });
      await line('its certificate has expired');
      await service.stop();
      await service.start();
    });

    expect([exitCode, service.tokens]).toEqual([0, ['token-1']]);
  });

  test('does not use an answer for another key', async () => {
    await service.start();
    const { answer } = service;
    const first = service.answer({ certificateSigningRequest: await anotherRequest(), token: '' });
    service.answer = () => first;

    const { exitCode, stderr } = await enrolDuring(async (line) => {
      await line('does not belong to its key');
      service.answer = answer;
    });

    expect([exitCode, stderr]).toEqual([
      0,
      expect.stringContaining(`certificate from podwire-ipam at ${service.address}`),
    ]);
  });

  test('waits until the directory can be written, and requests nothing meanwhile', async () => {
    await service.start();
    writeFileSync(service.directory, 'a file');

    const { exitCode } = await enrolDuring(async (line) => {
      await line(`certificate directory ${service.directory}: cannot be`);
      expect(service.tokens).toEqual([]);
      rmSync(service.directory);
    });

    expect([exitCode, service.tokens]).toEqual([0, ['token-1']]);
  });

  test('fails when --timeout is over, with the last failure', async () => {
    await service.start();
    await service.stop();

    expect(await enrol('--timeout', '300ms')).toMatchObject({
      exitCode: 5,
      stderr: expect.stringMatching(/certificates enrol failed: .*: not issued in time; .*connection refused/),
    });
  });

  test('ends with a signal', async () => {
    await service.start();
    service.answer = () => new Promise(() => undefined);
    const outcome = enrol();
    await expect.poll(() => service.tokens).toHaveLength(1);
    fakes.stopped.abort();

    expect(await outcome).toMatchObject({
      exitCode: 1,
      stderr: expect.stringContaining('stopped before it was issued'),
    });
  });
});

async function anotherRequest(): Promise<Buffer> {
  return (await createSigningRequest()).request;
}

describe('with a certificate', () => {
  test('that is young: the service is not called', async () => {
    await service.start();
    const key = await storeOldCertificate(0.5);
    await service.stop();

    expect(await enrol()).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^Certificate +unchanged$/m) });
    expect(storedKey()).toBe(key);
  });

  test('that is old: it is renewed, or kept while the service is down', async () => {
    await service.start();
    const key = await storeOldCertificate(-0.5);
    await service.stop();

    const kept = await enrol();
    expect(kept).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^Certificate +unchanged$/m) });
    expect(kept.stderr).toMatch(/connection refused.*; the certificate stays in use until \d/);
    expect(storedKey()).toBe(key);

    await service.start();
    expect(await enrol()).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^Certificate +issued$/m) });
    expect(storedKey()).not.toBe(key);
  });

  test.each<[string, () => Promise<void>, string]>([
    [
      'of another authority',
      async () => {
        const other = await CertificateFolder.create(join(folder, 'other'));
        const files = (await stored())!;
        service.answer = ({ certificateSigningRequest }) => other.answer(certificateSigningRequest, 'worker-1');
        expect(files.certificate).toContain('BEGIN');
        rmSync(service.directory, { recursive: true });
        await enrol();
        service.answer = ({ certificateSigningRequest }) =>
          service.certificates.answer(certificateSigningRequest, 'worker-1');
      },
      'is not signed by a trusted authority',
    ],
    [
      'of another key',
      () => {
        writeFileSync(join(service.directory, 'tls.key'), 'no key');
        return Promise.resolve();
      },
      'does not belong to its key',
    ],
  ])('%s: another one is requested', async (_, damage, fault) => {
    await service.start();
    await enrol();
    await damage();
    service.tokens.length = 0;

    const { exitCode, stderr } = await enrol();
    expect([exitCode, service.tokens]).toEqual([0, ['token-1']]);
    expect(stderr).toContain(fault);
  });
});

describe('--follow', () => {
  /** A busy machine takes seconds to start a process. */
  const STARTING = { timeout: 50_000 };
  const start = (...args: readonly string[]) =>
    new Program('../../ctl/main.ts', ['certificates', 'enrol', ...service.options, '--follow', ...args]);
  const messages = (log: readonly Record<string, unknown>[]) =>
    log.map(({ level, msg }) => `${String(level)}: ${String(msg)}`);

  test('is a process that renews until SIGTERM, with a log of JSON lines', async () => {
    service.answer = ({ certificateSigningRequest }) =>
      service.certificates.answer(certificateSigningRequest, 'worker-1', {
        fromMs: Date.now(),
        untilMs: Date.now() + 5000,
      });
    await service.start();
    const program = start();
    await expect.poll(() => service.tokens.length, STARTING).toBeGreaterThan(1);
    program.child.kill('SIGTERM');

    const { exitCode, log } = await program.result;
    expect(exitCode).toBe(0);
    expect(messages(log)).toEqual(
      expect.arrayContaining([
        `info: certificate in ${service.directory}: there is none; requesting one`,
        expect.stringMatching(/^info: certificate of node "worker-1": issued, valid until/),
        `info: certificate in ${service.directory}: half of its life is over; requesting one`,
        'info: stopping: SIGTERM received',
        'info: stopped',
      ]),
    );
  });

  test('ends with SIGTERM while the service does not answer', async () => {
    await service.start();
    service.answer = () => new Promise(() => undefined);
    const program = start();
    await expect.poll(() => service.tokens, STARTING).toHaveLength(1);
    program.child.kill('SIGTERM');

    const { exitCode, log } = await program.result;
    expect([exitCode, messages(log).at(-1)]).toEqual([0, 'info: stopped']);
  });

  test('requests again when a ConfigMap with the authorities is updated, as the kubelet does it', async () => {
    const [volume, first] = [join(folder, 'volume'), readFileSync(service.caFile)];
    const write = (version: string, content: Buffer): void => {
      mkdirSync(join(volume, version), { recursive: true });
      writeFileSync(join(volume, version, 'ca.crt'), content);
      symlinkSync(version, join(volume, '..data_tmp'));
      renameSync(join(volume, '..data_tmp'), join(volume, '..data'));
    };
    write('..1', first);
    symlinkSync('..data/ca.crt', join(volume, 'ca.crt'));
    await service.start();
    const args = service.options.map((word) => (word === service.caFile ? join(volume, 'ca.crt') : word));
    const program = new Program('../../ctl/main.ts', ['certificates', 'enrol', ...args, '--follow']);
    await expect.poll(() => service.tokens, STARTING).toHaveLength(1);
    await expect.poll(() => stored()).toBeDefined();

    await service.stop();
    const rotated = await CertificateFolder.create(join(folder, 'rotated'));
    service.answer = ({ certificateSigningRequest }) => rotated.answer(certificateSigningRequest, 'worker-1');
    await service.start({ files: await rotated.server() });
    write('..2', readFileSync(rotated.caPath));
    await expect.poll(async () => (await stored())?.authorities).toBe(readFileSync(rotated.caPath, 'utf8'));

    program.child.kill('SIGTERM');
    expect(await program.result).toMatchObject({ exitCode: 0 });
  });

  test('leaves a usable certificate when it is killed during a renewal', async () => {
    await service.start();
    for (let round = 0; round < 3; round++) {
      // The process of the round before may have completed its renewal.
      rmSync(service.directory, { recursive: true, force: true });
      // Half of its life is over, so that the process renews it at once.
      await storeOldCertificate(-0.5);
      service.writeToken(`token-${round}`);
      const program = start();
      await expect.poll(() => service.tokens, STARTING).toContain(`token-${round}`);
      await new Promise((resolve) => setTimeout(resolve, 8 * round));
      program.child.kill('SIGKILL');
      await once(program.child, 'exit');
      await service.stop();

      expect(await enrol()).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/^Certificate +unchanged$/m) });
      await service.start();
    }
  });
});

describe('a wrong command line', () => {
  test.each<[string, RegExp]>([
    ['', /--address: is missing; set it to podwire-ipam's listener/],
    ['--address 10.0.0.1:9651 --ca-file a --token-file b', /--directory: is missing/],
    ['--address unix:/run/ipam.sock', /--address "unix:\/run\/ipam.sock" is not HOST:PORT/],
    ['--address 10.0.0.1', /is not HOST:PORT/],
    [
      '--address 10.0.0.1:9651 --ca-file a --token-file b --directory c --follow --timeout 5s',
      /--follow: contradicts --timeout/,
    ],
  ])('%s', async (args, reason) => {
    const words = args.split(' ').filter((word) => word !== '');
    const { exitCode, stderr } = await fakes.podwirectl('certificates', 'enrol', ...words);
    expect([exitCode, stderr]).toEqual([2, expect.stringMatching(reason)]);
  });
});
