import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { journalEntry, journalStoreContract } from '../testing/journal-store-contract.js';
import { recordingLog } from '../testing/plugin.js';
import { DirectoryJournalStore } from './directory-store.js';
import { encodeEntry } from './entry.js';
import { JournalEvents } from './events.js';
import { Journal } from './journal.js';

let folder: string;
const directory = () => join(folder, 'lib', 'plugin');
const files = () => readdirSync(directory());
const put = (...names: string[]) =>
  Promise.all(names.map((name) => new DirectoryJournalStore(directory()).put(journalEntry(name))));

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-journal-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

describe('a journal in a directory', () => {
  journalStoreContract(() => ({
    open: () => new DirectoryJournalStore(directory()),
    spoil: (text) => files().forEach((name) => writeFileSync(join(directory(), name), text)),
  }));

  test('is readable by root alone, with one small file for each entry', async () => {
    await put('a');
    const [name = ''] = files();
    const { mode, size } = statSync(join(directory(), name));
    expect([(mode & 0o777).toString(8), (statSync(directory()).mode & 0o777).toString(8)]).toEqual(['600', '700']);
    expect(size).toBeLessThan(1024);
    expect(JSON.parse(readFileSync(join(directory(), name), 'utf8'))).toMatchObject({ handle: 'net.a' });
  });

  test('keeps unreadable entries, and one under another entry’s name, beside the valid ones', async () => {
    await put('a');
    const [name = ''] = files();
    writeFileSync(join(directory(), name), encodeEntry(journalEntry('b')));
    const loaded = await new DirectoryJournalStore(directory()).load();
    expect(loaded).toMatchObject({ entries: [], unreadable: [{ fault: expect.stringContaining('net/b/eth0') }] });
    expect(files()).toEqual([`${name}.unreadable`]);
  });

  test('no longer reports an unreadable file that an operator removed', async () => {
    await put('a', 'b');
    for (const name of files()) writeFileSync(join(directory(), name), '{');
    const store = new DirectoryJournalStore(directory());
    const [first] = (await store.load()).unreadable;
    expect(store.unreadable()).toHaveLength(2);
    rmSync(first!.path);
    expect(store.unreadable()).toHaveLength(1);
  });

  test('is created again after an operator removed it', async () => {
    await put('a');
    rmSync(directory(), { recursive: true });
    await put('b');
    expect((await new DirectoryJournalStore(directory()).load()).entries).toEqual([journalEntry('b')]);
  });

  test('names the setting when it cannot be created', async () => {
    writeFileSync(join(folder, 'file'), '');
    await expect(new DirectoryJournalStore(join(folder, 'file')).load()).rejects.toMatchObject({
      code: 'STATE_IO',
      message: expect.stringContaining('PODWIRE_NODE_STATE_DIRECTORY'),
    });
  });
});

describe('the journal of a process', () => {
  /** Writes entries endlessly, or as many as requested, and prints each when it is stored. */
  const WRITER = `
    const { DirectoryJournalStore } = await import(process.argv[1]);
    const store = new DirectoryJournalStore(process.argv[2]);
    for (let i = 0; i !== Number(process.argv[3]); i++) {
      const attachment = { network: 'net', containerId: 'c' + i, interfaceName: 'eth0' };
      await store.put({ attachment, action: 'release', held: undefined, reason: 'r', order: i, sinceMs: 1 });
      console.log('c' + i);
    }`;

  /** Arguments of Node.js for the program. */
  function writer(...rest: readonly string[]): readonly string[] {
    const module = join(import.meta.dirname, '..', 'dist', 'journal', 'directory-store.js');
    expect(existsSync(module), 'compile first: tsc -b plugin').toBe(true);
    return ['--input-type=module', '-e', WRITER, module, directory(), ...rest];
  }

  test('stores an entry on the disk, under its name, before it is acknowledged', () => {
    const trace = join(folder, 'trace');
    const calls = 'trace=fsync,fdatasync,rename,renameat,renameat2,write';
    execFileSync('strace', ['-f', '-y', '-o', trace, '-e', calls, process.execPath, ...writer('5')]);
    expect(storyOf(readFileSync(trace, 'utf8'))).toBe('FRDA'.repeat(5));
  });

  test.each([3, 8, 21])('keeps every acknowledged entry complete after a SIGKILL at %i entries', async (count) => {
    const child = spawn(process.execPath, writer(), { stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    const ended = new Promise((resolve) => child.once('close', resolve));
    await vi.waitFor(() => expect(text.split('\n').length).toBeGreaterThan(count), { interval: 1, timeout: 20_000 });
    child.kill('SIGKILL');
    await ended;
    const answered = text.split('\n').slice(0, -1);
    const { entries, unreadable } = await new DirectoryJournalStore(directory()).load();
    expect(unreadable).toEqual([]);
    const there = entries.map(({ attachment }) => attachment.containerId);
    expect(answered.filter((name) => !there.includes(name))).toEqual([]);
    expect(there.length - answered.length).toBeLessThanOrEqual(1);
    expect(files().filter((name) => !name.endsWith('.json'))).toEqual([]);
  });
});

/** Trace of strace, a letter for each successful call: F file synced, R renamed, D directory synced, A acknowledged. */
function storyOf(trace: string): string {
  const begun = new Map<string, string>();
  const letters = trace.split('\n').map((line) => {
    const [thread = ''] = line.split(' ', 1);
    // Another thread ran in between. An acknowledgement counts from when it began.
    if (line.endsWith('<unfinished ...>') && !line.includes('write(1<')) {
      begun.set(thread, line);
      return '';
    }
    return letterOf(line.includes(' resumed>') ? `${begun.get(thread) ?? ''}${line}` : line);
  });
  return letters.join('');
}

function letterOf(line: string): string {
  if (line.includes('write(1<')) return 'A';
  if (!line.endsWith(' = 0')) return '';
  if (line.includes('rename')) return 'R';
  if (!/f(data)?sync\(/.test(line)) return '';
  return line.includes('.writing>') ? 'F' : 'D';
}

describe('on a full disk', () => {
  const disk = () => join(folder, 'disk');

  beforeEach(() => {
    execFileSync('mkdir', [disk()]);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', disk()]);
  });
  afterEach(() => execFileSync('umount', [disk()]));

  /** Fills every page of it. */
  function fill(): void {
    try {
      writeFileSync(join(disk(), 'filler'), Buffer.alloc(1024 * 1024));
    } catch {
      // Until there was no room.
    }
  }

  test('entries are kept in memory with a warning, and stored when there is room again', async () => {
    const { log, lines } = recordingLog();
    const store = new DirectoryJournalStore(join(disk(), 'plugin'));
    const journal = new Journal({ store, maxEntriesCount: 10, clock: systemClock, events: new JournalEvents(log) });
    await journal.load();
    await journal.add(journalEntry('before'));
    expect(journal.fault).toBeUndefined();
    fill();
    await journal.add(journalEntry('a'));
    expect(journal.entries().map(({ attachment }) => attachment.containerId)).toEqual(['before', 'a']);
    expect(journal.fault).toMatch(/^1 entry .*ENOSPC/);
    expect(journal.level()).toMatchObject({ entries: 2, volatileEntries: 1 });
    expect(lines().map(({ msg }) => msg)).toContainEqual(expect.stringMatching(/net\/a\/eth0.*memory only.*ENOSPC/));
    expect((await store.load()).entries.map(({ attachment }) => attachment.containerId)).toEqual(['before']);

    rmSync(join(disk(), 'filler'));
    await journal.retryStorage();
    expect(journal.fault).toBeUndefined();
    expect((await store.load()).entries).toHaveLength(2);
  });
});
