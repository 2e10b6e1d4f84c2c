import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { CertificateFolder } from '../testing/certificates.js';
import { ManualClock } from '../testing/manual-clock.js';
import { recordingLog } from '../testing/server.js';
import { ExpiryWarning } from './certificate-expiry.js';

const HOUR_MS = 3_600_000;
/** End of the certificate, which holds for a day. */
const END_MS = Date.parse('2020-01-02T00:00:00.000Z');
const END = new Date(END_MS).toISOString();

let directory: string;
let path: string;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-certificate-expiry-'));
  const folder = await CertificateFolder.create(directory);
  const { identity } = await folder.client('node', 'worker-1', { fromMs: END_MS - 24 * HOUR_MS, untilMs: END_MS });
  path = identity!.certificate.path;
});

afterAll(() => rmSync(directory, { recursive: true }));

function warningAt(hoursLeft: number, of = path) {
  const clock = new ManualClock();
  clock.advance(END_MS - hoursLeft * HOUR_MS - clock.nowMs());
  const { log, lines } = recordingLog();
  const warning = new ExpiryWarning({ file: { setting: 'CERT_FILE', path: of }, clock, log });
  return { clock, warning, told: () => lines.map(({ level, msg }) => [level, msg]) };
}

const expires = () => ['warn', `certificate ${path} of CERT_FILE: expires at ${END}; renew it`];

test.each<[number, () => unknown[]]>([
  [2.5, () => []],
  [2.3, () => [expires()]],
  [0, () => [['error', `certificate ${path} of CERT_FILE: expired at ${END}; new connections fail; renew it`]]],
])('a certificate with %d of 24 hours left is reported', (hoursLeft, expected) => {
  const { warning, told } = warningAt(hoursLeft);
  warning.checkFile();
  expect(told()).toEqual(expected());
});

test('it is reported once an hour', () => {
  const { warning, told, clock } = warningAt(2);
  warning.checkFile();
  clock.advance(HOUR_MS - 1);
  warning.checkFile();
  expect(told()).toEqual([expires()]);
  clock.advance(1);
  warning.checkFile();
  expect(told()).toEqual([expires(), expires()]);
});

test('a file that is just being replaced is not reported', () => {
  const empty = join(directory, 'half.crt');
  writeFileSync(empty, '');
  for (const of of [empty, join(directory, 'none.crt')]) {
    const { warning, told } = warningAt(0, of);
    warning.checkFile();
    expect(told()).toEqual([]);
  }
});
