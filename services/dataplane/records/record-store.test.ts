import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { recordStoreContract, storedRecord } from '../testing/contracts/record-store-contract.js';
import { DirectoryRecordStore } from './record-store.js';
import { encodeRecord } from './record.js';

let folder: string;
const directory = () => join(folder, 'run', 'attachments');
const files = () => readdirSync(directory());

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-records-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

describe('records in a directory', () => {
  recordStoreContract(() => ({
    open: () => new DirectoryRecordStore(directory()),
    corrupt: (text) => files().forEach((name) => writeFileSync(join(directory(), name), text)),
  }));

  test('are accessible to root only, in one small file each', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    const { mode, size } = statSync(join(directory(), name));
    expect([(mode & 0o777).toString(8), (statSync(directory()).mode & 0o777).toString(8)]).toEqual(['600', '700']);
    expect(size).toBeLessThan(1024);
  });

  test('that a killed process did not finish writing are absent', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    writeFileSync(join(directory(), `${name}.writing`), encodeRecord(storedRecord('a')).slice(0, 40));
    expect((await new DirectoryRecordStore(directory()).load()).records).toEqual([storedRecord('a')]);
    expect(files()).toEqual([name]);
  });

  test('that cannot be read are kept in renamed files', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    writeFileSync(join(directory(), name), 'paper');
    const { unreadable } = await store.load();
    expect(unreadable).toMatchObject([{ path: join(directory(), `${name}.unreadable`) }]);
    expect(readFileSync(join(directory(), `${name}.unreadable`), 'utf8')).toBe('paper');
  });

  test('under the name of another record are moved aside', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    writeFileSync(join(directory(), name), encodeRecord(storedRecord('b')));
    expect(await store.load()).toMatchObject({
      records: [],
      unreadable: [{ fault: expect.stringContaining('net/b/eth0') }],
    });
  });

  test('do not affect other files', async () => {
    const store = new DirectoryRecordStore(directory());
    writeFileSync(join(directory(), 'README'), 'mine');
    expect(await store.load()).toEqual({ records: [], unreadable: [] });
    expect(files()).toEqual(['README']);
  });

  test('are stored even when the directory was removed', async () => {
    const store = new DirectoryRecordStore(directory());
    rmSync(join(folder, 'run'), { recursive: true });
    await store.put(storedRecord('a'));
    expect((await store.load()).records).toEqual([storedRecord('a')]);
    expect((statSync(directory()).mode & 0o777).toString(8)).toBe('700');
  });

  test('that a full disk refuses leave nothing, and are stored once there is space', async () => {
    const disk = join(folder, 'disk');
    mkdirSync(disk);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', disk]);
    try {
      const store = new DirectoryRecordStore(join(disk, 'attachments'));
      await store.put(storedRecord('a'));
      expect(() => writeFileSync(join(disk, 'filler'), Buffer.alloc(2 ** 20))).toThrow('ENOSPC');
      const refused = { code: 'STATE_IO', message: expect.stringContaining('ENOSPC') };
      await expect(store.put(storedRecord('b'))).rejects.toMatchObject(refused);
      await expect(store.put(storedRecord('a', { state: 'detaching' }))).rejects.toMatchObject(refused);
      expect(readdirSync(join(disk, 'attachments'))).toHaveLength(1);
      expect((await store.load()).records).toEqual([storedRecord('a')]);
      rmSync(join(disk, 'filler'));
      await store.put(storedRecord('b'));
      expect((await store.load()).records).toHaveLength(2);
    } finally {
      execFileSync('umount', [disk]);
    }
  });

  test('cannot be stored where a file has the directory’s path', () => {
    writeFileSync(join(folder, 'file'), '');
    expect(() => new DirectoryRecordStore(join(folder, 'file'))).toThrow(
      expect.objectContaining({
        code: 'STATE_IO',
        message: expect.stringContaining('PODWIRE_NODE_RECORDS_DIRECTORY'),
      }),
    );
  });
});
