import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { DirectoryRecordStore } from './directory-record-store.js';
import { encodeRecord } from './record.js';
import { recordStoreContract, storedRecord } from './record-store.contract.js';

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
    spoil: (text) => files().forEach((name) => writeFileSync(join(directory(), name), text)),
  }));

  test('are root’s alone, and one small file each', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    const { mode, size } = statSync(join(directory(), name));
    expect([(mode & 0o777).toString(8), (statSync(directory()).mode & 0o777).toString(8)]).toEqual(['600', '700']);
    expect(size).toBeLessThan(1024);
  });

  test('that a killed process was about to write are not there', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    writeFileSync(join(directory(), `${name}.writing`), encodeRecord(storedRecord('a')).slice(0, 40));
    expect((await new DirectoryRecordStore(directory()).load()).records).toEqual([storedRecord('a')]);
    expect(files()).toEqual([name]);
  });

  test('that cannot be read are kept beside the others', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    writeFileSync(join(directory(), name), 'paper');
    const { unreadable } = await store.load();
    expect(unreadable).toMatchObject([{ path: join(directory(), `${name}.unreadable`) }]);
    expect(readFileSync(join(directory(), `${name}.unreadable`), 'utf8')).toBe('paper');
  });

  test('under another’s name are put aside', async () => {
    const store = new DirectoryRecordStore(directory());
    await store.put(storedRecord('a'));
    const [name = ''] = files();
    writeFileSync(join(directory(), name), encodeRecord(storedRecord('b')));
    expect(await store.load()).toMatchObject({
      records: [],
      unreadable: [{ fault: expect.stringContaining('net/b/eth0') }],
    });
  });

  test('leave other files alone', async () => {
    const store = new DirectoryRecordStore(directory());
    writeFileSync(join(directory(), 'README'), 'mine');
    expect(await store.load()).toEqual({ records: [], unreadable: [] });
    expect(files()).toEqual(['README']);
  });

  test('are stored also where somebody has removed the directory', async () => {
    const store = new DirectoryRecordStore(directory());
    rmSync(join(folder, 'run'), { recursive: true });
    await store.put(storedRecord('a'));
    expect((await store.load()).records).toEqual([storedRecord('a')]);
    expect((statSync(directory()).mode & 0o777).toString(8)).toBe('700');
  });

  test('cannot be where a file is', () => {
    writeFileSync(join(folder, 'file'), '');
    expect(() => new DirectoryRecordStore(join(folder, 'file'))).toThrow(
      expect.objectContaining({
        code: 'STATE_IO',
        message: expect.stringContaining('PODWIRE_DATAPLANE_STATE_DIRECTORY'),
      }),
    );
  });
});
