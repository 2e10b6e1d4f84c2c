import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { recordingLog } from '@podwire/shared/testing/server';
import { afterEach, expect, test } from 'vitest';

import { LeaseEvents } from './lease-events.js';
import { TmpfsLeaseFile } from './lease-file.js';
import { NO_LEASES } from './lease.js';

const folder = mkdtempSync(join(tmpdir(), 'podwire-leases-'));
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const LEASES = {
  leases: [
    { address: '10.65.0.7', sequenceNumber: 2n ** 60n, poolName: 'default' },
    { address: 'fd65::7', sequenceNumber: 3n, poolName: '' },
  ],
  withdrawn: [{ address: '10.65.0.8', sequenceNumber: 4n, poolName: 'default' }],
};

function fileOf(bootId = 'boot', path = join(folder, 'run', 'leases')) {
  const { log, lines } = recordingLog();
  return { path, lines, file: new TmpfsLeaseFile({ path, bootId, events: new LeaseEvents(log) }) };
}

test('the next process reads the leases, in a directory that was missing', () => {
  const { file, path } = fileOf();
  expect(file.load()).toEqual(NO_LEASES);
  file.save(LEASES);
  expect(fileOf().file.load()).toEqual(LEASES);
  expect(readdirSync(join(path, '..'))).toEqual(['leases']);
});

test('leases of another boot, and damaged files, count as none', () => {
  const { file, path } = fileOf();
  file.save(LEASES);
  expect(fileOf('next boot').file.load()).toEqual(NO_LEASES);
  for (const text of ['', '{', '{"version":2}', '{"version":1,"bootId":"boot","leases":[{"address":"x"}]}']) {
    writeFileSync(path, text);
    expect(fileOf().file.load()).toEqual(NO_LEASES);
  }
});

test('a file that cannot be written is removed, as it would offer addresses of pods', () => {
  const { file, path, lines } = fileOf();
  file.save(LEASES);
  mkdirSync(`${path}.writing`);
  file.save(NO_LEASES);
  expect(fileOf().file.load()).toEqual(NO_LEASES);
  expect(lines.map(({ msg }) => msg)).toEqual([
    `${path} fails: after a restart the node asks podwire-ipam for its leases`,
  ]);
});
