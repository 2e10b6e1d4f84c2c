import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { recordingLog } from '@podwire/shared/testing/server';
import { afterEach, expect, test } from 'vitest';

import { AddressEvents } from './events.js';
import { NOTHING_STORED, TmpfsLeaseFile, type StoredLeases } from './lease-file.js';

const folder = mkdtempSync(join(tmpdir(), 'podwire-leases-'));
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const LEASES: StoredLeases = {
  leases: [
    { address: '10.65.0.7', sequenceNumber: 2n ** 60n, poolName: 'default' },
    { address: 'fd65::7', sequenceNumber: 3n, poolName: '' },
  ],
  validUntilMs: 3_600_000,
  coolDownMs: 30_000,
  session: { bootId: 'boot', generation: 7n, revision: 99n },
  ended: [['net/a/eth0', 1234.5]],
};

function fileOf({ bootId = 'boot', nodeName = 'node-1' } = {}) {
  const { log, lines } = recordingLog();
  const path = join(folder, 'run', 'leases');
  return { path, lines, file: new TmpfsLeaseFile({ path, nodeName, bootId, events: new AddressEvents(log) }) };
}

test('the next process reads the leases, in a directory that was missing', () => {
  const { file, path } = fileOf();
  expect(file.load()).toEqual(NOTHING_STORED);
  file.save(LEASES);
  expect(fileOf().file.load()).toEqual(LEASES);
  expect(readdirSync(join(path, '..'))).toEqual(['leases']);
  rmSync(join(path, '..'), { recursive: true });
  file.save(LEASES);
  expect(fileOf().file.load()).toEqual(LEASES);
});

test('the leases of another boot count as none, its session does not', () => {
  fileOf().file.save(LEASES);
  const { session } = LEASES;
  expect(fileOf({ bootId: 'next boot' }).file.load()).toEqual({ ...NOTHING_STORED, session });
});

test('a file of another node name, and a damaged one, count as none', () => {
  const { file, path } = fileOf();
  file.save(LEASES);
  expect(fileOf({ nodeName: 'renamed' }).file.load()).toEqual(NOTHING_STORED);
  for (const text of ['', '{', '{"version":2}', '{"version":1,"bootId":"boot","leases":[]}']) {
    writeFileSync(path, text);
    expect(fileOf().file.load()).toEqual(NOTHING_STORED);
  }
});

test('a file that cannot be written is removed, as it would offer addresses of pods', () => {
  const { file, path, lines } = fileOf();
  file.save(LEASES);
  mkdirSync(`${path}.writing`);
  file.save(NOTHING_STORED);
  expect(fileOf().file.load()).toEqual(NOTHING_STORED);
  expect(lines.map(({ msg }) => msg)).toEqual([
    `${path} fails: after a restart the node asks podwire-ipam for its leases`,
  ]);
});
