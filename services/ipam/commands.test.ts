import { spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

import { systemClock } from '@podwire/shared/runtime/clock';
import { builtFile } from '@podwire/shared/testing/program';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { KubernetesApi } from './api-server/api.js';
import { parseCommandLine, runCommand, USAGE } from './commands.js';
import { SETTINGS } from './config.js';
import { EmbeddedStore } from './engine/embedded/embedded-store.js';
import { encodeHistoryEntry } from './records/json/history.js';
import { RecordKeys } from './records/json/keys.js';
import { serialize } from './records/json/registry.js';
import { NAMESPACE } from './testing/api-server.js';
import { contentOf, fill, forever, sampleRecords } from './testing/archives.js';
import { ObjectServer } from './testing/object-server.js';
import { prefix } from './testing/records.js';
import { outsideOfKubernetes } from './testing/service.js';
import { readMark } from './transfer/scope.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-commands-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const envOf = (store: string) => ({ PODWIRE_IPAM_STORE_DIRECTORY: join(folder, store) });
const file = () => join(folder, 'export.jsonl');

/** Runs the program's command in this process. */
async function run(
  args: readonly string[],
  env: Record<string, string> = envOf('a'),
  kubernetes: () => KubernetesApi = outsideOfKubernetes,
  signals: EventEmitter = new EventEmitter(),
) {
  const texts = { stdout: '', stderr: '' };
  const stream = (name: 'stdout' | 'stderr') =>
    new Writable({
      write: (chunk: Buffer, _, done) => {
        texts[name] += chunk.toString();
        done();
      },
    });
  const around = { env, stdout: stream('stdout'), stderr: stream('stderr') };
  const command = parseCommandLine(args);
  if (command.name === 'serve') throw new Error('a command was expected');
  const own = { clock: systemClock, newUid: () => 'uid', pid: process.pid, random: () => 0.5, kubernetes };
  const exitCode = await runCommand(command, { ...own, process: Object.assign(signals, around) });
  return { exitCode, ...texts };
}

async function withStore<Result>(name: string, work: (store: EmbeddedStore) => Promise<Result>): Promise<Result> {
  const store = await EmbeddedStore.open({ directory: join(folder, name), pid: process.pid });
  try {
    return await work(store);
  } finally {
    await store.close();
  }
}

describe('the command line', () => {
  test.each([
    [[], { name: 'serve' }],
    [['serve'], { name: 'serve' }],
    [['export'], { name: 'export', file: undefined }],
    [['export', 'f'], { name: 'export', file: 'f' }],
    [['import', 'f'], { name: 'import', file: 'f', dryRun: false, merge: false, rewritePrefix: false }],
    [
      ['import', '--dry-run', 'f', '--merge', '--rewrite-prefix'],
      { name: 'import', file: 'f', dryRun: true, merge: true, rewritePrefix: true },
    ],
    [['--version'], { name: 'version' }],
    [['--help'], { name: 'help' }],
    [['import', '-h'], { name: 'help' }],
  ])('%j is accepted', (args, command) => {
    expect(parseCommandLine(args)).toEqual(command);
  });

  test.each([
    [['backup'], 'unknown command "backup"'],
    [['--verbose'], 'unknown command "--verbose"'],
    [['serve', 'x'], 'unknown command "serve"'],
    [['export', 'a', 'b'], '"export" takes one file; 2 are given'],
    [['export', '--merge'], '"export": unknown option "--merge"'],
    [['import'], '"import" requires a file'],
    [['import', '--force', 'f'], '"import": unknown option "--force"'],
  ])('%j is refused with the usage', async (args, reason) => {
    const { exitCode, stdout, stderr } = await run(args);
    expect([exitCode, stdout]).toEqual([2, '']);
    expect(stderr).toBe(`podwire-ipam: ${reason}\n\n${USAGE}`);
  });

  test('help and version are printed to the standard output', async () => {
    const help = await run(['--help']);
    expect(help).toEqual({ exitCode: 0, stdout: expect.stringContaining(USAGE), stderr: '' });
    for (const { variable, about } of Object.values(SETTINGS)) {
      expect(help.stdout).toContain(variable);
      expect(help.stdout.replace(/\s+/g, ' ')).toContain(about);
    }
    expect(await run(['--version'])).toMatchObject({ exitCode: 0, stdout: 'podwire-ipam 0.1.0\n' });
  });
});

function pastEntry(releasedAtMs: number): [string, Buffer] {
  const address = prefix('10.65.0.1/32');
  const owner = { node: 'n1' };
  const entry = { address, block: prefix('10.65.0.0/26'), handleId: 'net.c1', owner, sequenceNumber: 7n };
  const whole = { ...entry, allocatedAtMs: undefined, releasedAtMs };
  return [new RecordKeys('/calico').historyEntry(whole), serialize(encodeHistoryEntry(whole))];
}

describe('export', () => {
  test('writes a complete file that only its owner can read, and import restores it', async () => {
    const records = sampleRecords();
    await withStore('a', (store) => fill(store, records));
    const outcome = await run(['export', file()]);
    expect(outcome).toMatchObject({ exitCode: 0, stdout: '' });
    expect(outcome.stderr).toMatch(/^podwire-ipam: exported 305 records of revision \d+, SHA-256 [0-9a-f]{64}\n$/);
    expect(statSync(file()).mode & 0o777).toBe(0o600);
    expect(await run(['import', '--dry-run', file()], envOf('b'))).toMatchObject({
      stderr:
        'podwire-ipam: would import 305 of 305 records; the remaining records exist already; nothing was written\n',
    });
    expect(await run(['import', file()], envOf('b'))).toMatchObject({
      exitCode: 0,
      stderr: 'podwire-ipam: imported 305 records, 305 of them written now; all records were verified\n',
    });
    const expected = new Map([...records].map(([key, value]) => [key, value.toString('hex')]));
    expect(await withStore('b', (store) => contentOf(store))).toEqual(expected);
    const again = await run(['export'], envOf('b'));
    const body = (text: string): string => text.split('\n').slice(1, -2).join('\n');
    expect(body(again.stdout)).toBe(body(readFileSync(file(), 'utf8')));
  });

  test('goes to the objects of Kubernetes, once no podwire-ipam leads, and names what it leaves out', async () => {
    const entries = [1, 30].map((hours) => pastEntry(Date.now() - hours * 3_600_000));
    await withStore('a', (store) => fill(store, new Map([...sampleRecords(), ...entries])));
    await run(['export', file()]);
    const server = await ObjectServer.start();
    try {
      server.groups.set('/apis/projectcalico.org/v3', ['ippools', 'ipamblocks']);
      const env = { PODWIRE_IPAM_STORE: 'kubernetes' };
      const { exitCode, stderr } = await run(['import', file()], env, () => new KubernetesApi(server.options));
      expect([exitCode, stderr.split('\n')]).toMatchObject([
        0,
        [
          'podwire-ipam: the import begins when no podwire-ipam serves the datastore',
          'podwire-ipam: imported 307 records, 2 of them written now; all records were verified',
          'left out: 3 records of kinds that this store does not have: bytes, empty, default',
          expect.stringContaining('left out: 300 records of handles and endpoints without addresses: net.c0, net.c1'),
          'left out: 1 entry of the history: unreadable',
          'left out: 1 entry of the history: released more than 24 h ago',
          '',
        ],
      ]);
      const segments = server.list('/apis/podwire.dev/v1alpha1/historysegments');
      expect(segments.map(({ spec }) => Object(spec).entries)).toEqual([1]);
      const lease = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases/podwire-ipam`;
      expect(Object(server.get(lease)?.spec).holderIdentity).toBe('');
    } finally {
      await server.stop();
    }
  });

  test('into Kubernetes waits for podwire-ipam, and ends by a signal', async () => {
    await withStore('a', (store) => fill(store, sampleRecords()));
    await run(['export', file()]);
    const server = await ObjectServer.start();
    server.groups.set('/apis/projectcalico.org/v3', ['ipamblocks']);
    const leases = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases`;
    const renewTime = new Date().toISOString();
    const spec = { holderIdentity: 'ipam-1', leaseDurationSeconds: 15, renewTime, leaseTransitions: 0 };
    server.put(leases, { metadata: { name: 'podwire-ipam' }, spec });
    const stopped = new EventEmitter();
    try {
      const env = { PODWIRE_IPAM_STORE: 'kubernetes' };
      const importing = run(['import', file()], env, () => new KubernetesApi(server.options), stopped);
      await expect.poll(() => server.requests).toContain(`GET ${leases}/podwire-ipam`);
      stopped.emit('SIGTERM');
      const { exitCode, stderr } = await importing;
      expect([exitCode, stderr]).toMatchObject([1, expect.stringContaining('SIGTERM received')]);
    } finally {
      await server.stop();
    }
  });

  test('keeps the previous file when it fails, and no temporary one', async () => {
    writeFileSync(file(), 'before');
    await withStore('a', async () => {
      const { exitCode, stderr } = await run(['export', file()]);
      expect(exitCode).toBe(1);
      expect(stderr).toMatch(/^podwire-ipam: export failed: .*\(STORE_IN_USE\)\n$/);
    });
    expect(readFileSync(file(), 'utf8')).toBe('before');
    expect(readdirSync(folder).filter((name) => name.includes('partial'))).toEqual([]);
  });

  test.each([
    ['a missing folder', ['export', '/nowhere/export'], 'EXPORT_IO'],
    ['a missing file', ['import', '/nowhere/export'], 'EXPORT_IO'],
    ['wrong settings', ['export'], 'INVALID_SETTINGS'],
  ])('fails with %s in one line for people', async (name, args, code) => {
    const env = name === 'wrong settings' ? { PODWIRE_IPAM_NO_SUCH: 'x' } : envOf('a');
    const { exitCode, stdout, stderr } = await run(args, env);
    expect([exitCode, stdout, stderr.split('\n').length]).toEqual([1, '', 2]);
    expect(stderr).toContain(`(${code})`);
  });
});

/** Starts the program with the lowest priority: the process to kill must not finish while this process waits for the CPU. */
function spawnProgram(args: readonly string[], env: Record<string, string>) {
  const command = [process.execPath, builtFile(join(import.meta.dirname, 'main.ts')), ...args];
  const child = spawn('nice', ['-n', '19', ...command], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stderr = '';
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const ended = once(child, 'close').then(() => ({ exitCode: child.exitCode, stderr }));
  return { child, ended };
}

describe('the program', () => {
  test(
    'killed during an import leaves a datastore that is not served until the import is repeated',
    { timeout: 120_000 },
    async () => {
      await withStore('a', (store) => fill(store, sampleRecords('/calico', 40_000)));
      await run(['export', file()]);
      const importing = spawnProgram(['import', file()], envOf('b'));
      const data = join(folder, 'b', 'data.mdb');
      while (!existsSync(data) || statSync(data).size < 2 * 2 ** 20) {
        expect(importing.child.exitCode).toBeNull();
        await sleep(1);
      }
      importing.child.kill('SIGKILL');
      await importing.ended;
      const mark = await withStore('b', (store) => readMark(store, '/calico', forever));
      expect(mark?.mark.state).toBe('running');
      const serving = spawnProgram([], { ...envOf('b'), PODWIRE_IPAM_LISTEN: `unix:${join(folder, 'ipam.sock')}` });
      const served = await serving.ended;
      expect(served.exitCode).toBe(1);
      expect(served.stderr).toContain('an import into the datastore is incomplete');
      const repeated = await spawnProgram(['import', file()], envOf('b')).ended;
      expect(repeated).toMatchObject({ exitCode: 0 });
      expect(repeated.stderr).toContain('continuing an interrupted import; all records were verified');
      const [first, second] = [await withStore('a', contentOf), await withStore('b', contentOf)];
      expect(second).toEqual(first);
    },
  );

  test('refuses a truncated export with exit code 1, and an unknown command with 2', { timeout: 60_000 }, async () => {
    await withStore('a', (store) => fill(store, sampleRecords()));
    await run(['export', file()]);
    truncateSync(file(), 5000);
    const truncated = await spawnProgram(['import', file()], envOf('b')).ended;
    expect(truncated.exitCode).toBe(1);
    expect(truncated.stderr).toMatch(/^podwire-ipam: import failed: line \d+ .*\(EXPORT_INVALID\)\n$/);
    expect((await spawnProgram(['improt'], {}).ended).exitCode).toBe(2);
  });
});
