import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, it } from 'vitest';

import { CertificateAuthority } from '../testing/etcd-server.js';
import { instantClock } from '../testing/stores.js';
import { CertificateExpiryCheck } from './credentials.js';

const RUNS_PER_HOUR = 120;
const HOUR_MS = 3_600_000;
/** Of the certificate of the fixture, which holds for a day. */
const END = '2020-01-02T00:00:00.000Z';

let directory: string;
let file: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-certificate-life-'));
  file = new CertificateAuthority(directory).issueExpired('own').cert;
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

function lifeAt(hoursLeft: number, path = file) {
  const told: string[] = [];
  const clock = { ...instantClock, hoursLeft, nowMs: () => Date.parse(END) - clock.hoursLeft * HOUR_MS };
  const reportExpiry = (end: Date, hasEnded: boolean): void =>
    void told.push(`${hasEnded ? 'ended' : 'ends'} ${end.toISOString()}`);
  return { clock, told, life: new CertificateExpiryCheck({ file: path, clock, reportExpiry }) };
}

it.each<[number, string[]]>([
  [2.5, []],
  [2.3, [`ends ${END}`]],
  [0, [`ended ${END}`]],
])('a certificate with %d of 24 hours left is reported as %j', (hoursLeft, expected) => {
  const { life, told } = lifeAt(hoursLeft);
  life.run();
  expect(told).toEqual(expected);
});

it('it is looked at once in an hour', () => {
  const { life, told, clock } = lifeAt(3);
  life.run();
  clock.hoursLeft = 2;
  for (let run = 1; run < RUNS_PER_HOUR; run++) life.run();
  expect(told).toEqual([]);
  life.run();
  expect(told).toEqual([`ends ${END}`]);
});

it('a file that is just being replaced says nothing', () => {
  const path = join(directory, 'half.crt');
  writeFileSync(path, '');
  const { life, told } = lifeAt(0, path);
  life.run();
  expect(told).toEqual([]);
});
