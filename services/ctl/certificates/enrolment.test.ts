import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { CertificateFolder } from '@podwire/shared/testing/certificates';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { recordingLog } from '@podwire/shared/testing/server';
import { createSigningRequest } from '@podwire/shared/tls/signing-request';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { inspect, parseCertificates } from './certificate.js';
import { CertificateDirectory } from './certificate-directory.js';
import { Enrolment, type EnrolmentOptions } from './enrolment.js';

/** Renewals over hours and days of a clock that the test advances, with a double of the request. */

const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const LIFE_MS = 60 * MINUTE_MS;

let folder: string;
let caFile: string;
let clock: ManualClock;
let authority: CertificateFolder;
let directory: CertificateDirectory;
let log: ReturnType<typeof recordingLog>;
/** Times of the requests since the start of the clock, in milliseconds. */
let requestsMs: number[];
/** Thrown by requests while it is set. */
let refusal: Error | undefined;
/** Time before a request from which on its certificate is valid, in milliseconds. */
let backdatedMs: number;
let stopped: AbortController;
let startMs: number;

const down = new Failure('UNREACHABLE', 'podwire-ipam at 192.0.2.1:9651: connection refused');

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-enrolment-'));
  clock = new ManualClock();
  startMs = clock.nowMs();
  authority = await CertificateFolder.create(join(folder, 'authority'));
  caFile = join(folder, 'ca.crt');
  writeFileSync(caFile, readFileSync(authority.caPath));
  directory = new CertificateDirectory(join(folder, 'tls'), clock);
  log = recordingLog();
  requestsMs = [];
  refusal = undefined;
  backdatedMs = 0;
  stopped = new AbortController();
});
afterEach(() => {
  stopped.abort();
  rmSync(folder, { recursive: true });
});

const request: EnrolmentOptions['request'] = async () => {
  requestsMs.push(clock.nowMs() - startMs);
  if (refusal) throw refusal;
  const { key, request: signingRequest } = await createSigningRequest();
  const fromMs = clock.nowMs() - backdatedMs;
  const validity = { fromMs, untilMs: fromMs + LIFE_MS };
  const files = { key, ...(await authority.answer(signingRequest, 'worker-1', validity)) };
  const inspection = inspect(files, parseCertificates(files.authorities), clock.nowMs());
  if (!inspection.usable) throw new Error(inspection.fault);
  return { files, inspection };
};

function enrolment(random = 0): Enrolment {
  const issuer = { address: '192.0.2.1:9651', caFile, tokenFile: join(folder, 'token') };
  return new Enrolment({ issuer, directory, request, clock, random: () => random, log: log.log });
}

/** Advances the clock in steps of the loop's sleeps, until the time is over. */
async function pass(durationMs: number): Promise<void> {
  const endMs = clock.nowMs() + durationMs;
  for (;;) {
    while (clock.sleeping === 0) await new Promise((resolve) => setImmediate(resolve));
    if (clock.nowMs() >= endMs) return;
    clock.advance(Math.min(clock.nextMs ?? 0, endMs - clock.nowMs()));
  }
}

const messages = (level: string) => log.lines.filter((line) => line.level === level).map(({ msg }) => String(msg));
const storedCertificate = () => readFileSync(join(directory.path, 'tls.crt'), 'utf8');

describe('a certificate that is kept', () => {
  test('is requested once, and renewed at half of its life', async () => {
    const following = enrolment().follow(stopped.signal);
    await pass(SECOND_MS);
    expect(requestsMs).toEqual([0]);
    const first = storedCertificate();

    await pass(30 * MINUTE_MS - 10 * SECOND_MS);
    expect(requestsMs).toHaveLength(1);
    await pass(20 * SECOND_MS);
    expect(requestsMs).toHaveLength(2);
    expect(storedCertificate()).not.toBe(first);
    expect(messages('info').at(-1)).toMatch(/^certificate of node "worker-1": issued, valid until .*, renewed from /);

    stopped.abort();
    await following;
  });

  test('is renewed later by a tenth of its life at most, so that nodes do not call at once', async () => {
    void enrolment(0.99).follow(stopped.signal);
    await pass(35 * MINUTE_MS);
    expect(requestsMs).toHaveLength(1);
    await pass(2 * MINUTE_MS);
    expect(requestsMs).toHaveLength(2);
  });

  test('is valid at a start: nothing is requested', async () => {
    await enrolment().obtain(stopped.signal);
    clock.advance(29 * MINUTE_MS);

    await expect(enrolment().obtain(stopped.signal)).resolves.toMatchObject({ state: 'unchanged' });
    expect(requestsMs).toHaveLength(1);
  });

  test('and is older than half of its life is renewed at a start', async () => {
    await enrolment().obtain(stopped.signal);
    clock.advance(31 * MINUTE_MS);

    await expect(enrolment().obtain(stopped.signal)).resolves.toMatchObject({ state: 'issued' });
    expect(requestsMs).toHaveLength(2);
  });

  test('that cannot be renewed is kept at a start, and the failure is logged', async () => {
    await enrolment().obtain(stopped.signal);
    const first = storedCertificate();
    clock.advance(31 * MINUTE_MS);
    refusal = down;

    await expect(enrolment().obtain(stopped.signal)).resolves.toMatchObject({ state: 'unchanged' });
    expect(storedCertificate()).toBe(first);
    expect(messages('warn')).toEqual([
      expect.stringMatching(/connection refused \(UNREACHABLE\); the certificate stays in use until 1970-01-01T01:/),
    ]);
  });

  test('is requested again when it is removed', async () => {
    void enrolment().follow(stopped.signal);
    await pass(2 * MINUTE_MS);
    rmSync(directory.path, { recursive: true });

    await pass(10 * SECOND_MS);
    expect(requestsMs).toHaveLength(2);
    expect(storedCertificate()).toContain('BEGIN CERTIFICATE');
  });
});

describe('failures', () => {
  test('are logged once each, and retried at growing intervals of at most 30 s without a certificate', async () => {
    refusal = down;
    void enrolment(0.9).follow(stopped.signal);
    await pass(10 * MINUTE_MS);
    refusal = new Failure('ACCESS_DENIED', 'token: not of podwire-node');
    await pass(10 * MINUTE_MS);
    refusal = down;
    await pass(10 * MINUTE_MS);

    const intervals = requestsMs.slice(1).map((time, index) => time - requestsMs[index]!);
    expect(intervals.slice(0, 5)).toEqual([900, 1800, 3600, 7200, 14_400]);
    expect(Math.max(...intervals)).toBe(27_000);
    expect(messages('warn')).toEqual([
      'podwire-ipam at 192.0.2.1:9651: connection refused (UNREACHABLE); retrying',
      'token: not of podwire-node (ACCESS_DENIED); retrying',
    ]);
  });

  test('of renewals are retried every few minutes; warnings begin when a tenth of the life is left', async () => {
    void enrolment(0.5).follow(stopped.signal);
    await pass(32 * MINUTE_MS);
    refusal = down;
    await pass(21 * MINUTE_MS);
    expect(requestsMs.length).toBeGreaterThan(8);
    expect(requestsMs.length).toBeLessThan(16);
    expect(messages('warn')).toHaveLength(1);

    await pass(3.5 * MINUTE_MS);
    expect(messages('warn').slice(1)).toEqual([
      expect.stringMatching(/expires at 1970-01-01T01:.* and is not renewed/),
    ]);

    await pass(5 * MINUTE_MS);
    expect(messages('info').at(-1)).toMatch(/expired at 1970-.*; requesting one/);
    refusal = undefined;
    await pass(MINUTE_MS);
    expect(messages('info').at(-1)).toMatch(/issued/);
  });

  test('a certificate that is old when it is issued is renewed once a minute at most', async () => {
    backdatedMs = 0.6 * LIFE_MS;
    void enrolment().follow(stopped.signal);
    await pass(5 * MINUTE_MS);

    expect(requestsMs).toEqual([0, 1, 2, 3, 4, 5].map((minutes) => minutes * MINUTE_MS));
  });

  test('a defect ends the work', async () => {
    refusal = new TypeError('a defect');

    await expect(enrolment().obtain(stopped.signal)).rejects.toBe(refusal);
    await expect(enrolment().follow(stopped.signal)).rejects.toBe(refusal);
  });
});

describe('the authorities', () => {
  test('that change cause a request at once', async () => {
    void enrolment().follow(stopped.signal);
    await pass(10 * MINUTE_MS);
    const rotated = await CertificateFolder.create(join(folder, 'rotated'));
    authority = rotated;
    writeFileSync(caFile, readFileSync(rotated.caPath));

    await pass(10 * SECOND_MS);
    expect(requestsMs).toHaveLength(2);
    expect(readFileSync(join(directory.path, 'ca.crt'), 'utf8')).toBe(readFileSync(rotated.caPath, 'utf8'));
  });

  test('that change end a back-off', async () => {
    refusal = down;
    void enrolment(0.99).follow(stopped.signal);
    await pass(5 * MINUTE_MS);
    const before = requestsMs.length;
    refusal = undefined;
    writeFileSync(caFile, `${readFileSync(authority.caPath, 'utf8')}\n# another line\n`);

    await pass(6 * SECOND_MS);
    expect(requestsMs).toHaveLength(before + 1);
  });

  test('of which the service returns another set cause one request, not one per look', async () => {
    const [own, other] = [authority, await CertificateFolder.create(join(folder, 'other'))];
    writeFileSync(caFile, readFileSync(own.caPath, 'utf8') + readFileSync(other.caPath, 'utf8'));
    void enrolment().follow(stopped.signal);

    await pass(10 * MINUTE_MS);
    expect(requestsMs).toHaveLength(1);
    // The service signs by an authority that is not in the file yet.
    authority = await CertificateFolder.create(join(folder, 'third'));
    rmSync(directory.path, { recursive: true });
    await pass(10 * MINUTE_MS);
    expect(requestsMs).toHaveLength(2);
  });

  test.each<[string, () => void, RegExp]>([
    ['does not exist', () => rmSync(caFile), /^--ca-file .*: cannot be read; create it \(ENOENT/],
    ['is empty', () => writeFileSync(caFile, '\n'), /^--ca-file .*: is empty/],
    ['is not a certificate', () => writeFileSync(caFile, 'soon'), /^--ca-file .*: is not a certificate/],
  ])('are waited for while the file %s', async (_, damage, message) => {
    const content = readFileSync(caFile);
    damage();
    const obtaining = enrolment().obtain(stopped.signal);
    await pass(30 * SECOND_MS);
    expect(requestsMs).toEqual([]);
    expect(messages('warn')).toEqual([expect.stringMatching(message)]);

    writeFileSync(caFile, content);
    clock.advance(2 * SECOND_MS);
    await expect(obtaining).resolves.toMatchObject({ state: 'issued' });
  });
});

describe('a wait', () => {
  test('ends with the signal', async () => {
    refusal = down;
    const obtaining = enrolment(0.9).obtain(stopped.signal);
    await pass(MINUTE_MS);
    stopped.abort();

    await expect(obtaining).rejects.toMatchObject({ code: 'CANCELLED' });
  });

  test('ends with the deadline, and names the last failure', async () => {
    refusal = down;
    const obtaining = enrolment(0.9).obtain(stopped.signal, clock.nowMs() + 20 * SECOND_MS);
    const outcome = expect(obtaining).rejects.toMatchObject({
      code: 'DEADLINE_EXCEEDED',
      message: expect.stringMatching(/not issued in time; raise --timeout: podwire-ipam at .*connection refused/),
    });
    await pass(19 * SECOND_MS);
    clock.advance(SECOND_MS);
    await outcome;
  });
});
