import type { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { readOwnPackage } from '@podwire/shared/runtime/own-package';
import { serverSettingsUsage } from '@podwire/shared/runtime/usage';
import { counted } from '@podwire/shared/words/counted';

import { USAGE, type Command, type ExportCommand, type ImportCommand } from './command-line.js';
import { readConfig, SETTINGS, type Config } from './config.js';
import { Events } from './engine/events.js';
import { openStore, type OpenStore } from './startup.js';
import { readLines, streamSink, writeWhole } from './transfer/export-file.js';
import { exportDatastore } from './transfer/export.js';
import { importDatastore } from './transfer/import.js';

/** The part of the process that a command needs. */
export interface CommandProcess {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly stdout: Writable;
  readonly stderr: Writable;
  once(event: 'SIGINT' | 'SIGTERM', listener: () => void): unknown;
}

/** What a command takes from the process it runs in. */
export interface CommandSurroundings {
  readonly process: CommandProcess;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly pid: number;
}

/** Bytes of a transaction of an import, which etcd's usual limit of 1.5 MiB has room for. */
const TRANSACTION_BYTES = 512 * 1024;

/**
 * Runs everything but the service. What a command has to say is for people: lines on the standard error, and on the standard
 * output what was asked for.
 * @returns the exit code
 */
export async function runCommand(
  command: Exclude<Command, { name: 'serve' }>,
  around: CommandSurroundings,
): Promise<number> {
  switch (command.name) {
    case 'help':
      around.process.stdout.write(`${USAGE}\n${serverSettingsUsage(SETTINGS)}`);
      return 0;
    case 'version':
      around.process.stdout.write(`podwire-ipam ${(await readOwnPackage(import.meta.url, '@podwire/ipam')).version}\n`);
      return 0;
    case 'wrong':
      around.process.stderr.write(`podwire-ipam: ${command.reason}\n\n${USAGE}`);
      return 2;
    case 'export':
    case 'import':
      return transfer(command, around);
  }
}

async function transfer(command: ExportCommand | ImportCommand, around: CommandSurroundings): Promise<number> {
  const { env, stderr } = around.process;
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    around.process.once(signal, () =>
      stop.abort(new Failure('CANCELLED', `${signal} received; what was begun is not finished: repeat it`)),
    );
  try {
    const config = readConfig(env);
    // People read what comes of it, not a log.
    const events = new Events(createLogger({ service: 'podwire-ipam', level: 'fatal', destination: stderr }));
    const { pid, newUid } = around;
    // Nobody watches, and what is kept for that would be the whole of an import.
    const opened = await openStore(config, { pid, newUid, events, watchHistoryCount: 1 });
    try {
      const done = command.name === 'export' ? runExport(command, config, opened) : runImport(command, config, opened);
      stderr.write(`podwire-ipam: ${await done(around, stop.signal)}\n`);
      return 0;
    } finally {
      await opened.store.close();
    }
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    stderr.write(`podwire-ipam: ${command.name} failed: ${error.message} (${error.code})\n`);
    return 1;
  }
}

/** @returns what to tell people */
type Run = (around: CommandSurroundings, signal: AbortSignal) => Promise<string>;

function runExport({ file }: ExportCommand, config: Config, { store }: OpenStore): Run {
  return async ({ process: { stdout }, pid }, signal) => {
    const options = { store, kind: config.store, prefix: config.datastorePrefix, signal };
    const { records, revision, sha256 } =
      file === undefined
        ? await exportDatastore({ ...options, sink: streamSink(stdout) })
        : await writeWhole(file, pid, (sink) => exportDatastore({ ...options, sink }));
    return `exported ${counted(records, 'record')} of revision ${revision}, SHA-256 ${sha256}`;
  };
}

function runImport(
  command: ImportCommand,
  config: Config,
  { store, maxOperationsCount, isSoleWriter }: OpenStore,
): Run {
  return async ({ newUid, clock }, signal) => {
    const { file, dryRun, merge, rewritePrefix } = command;
    const { records, written, resumed } = await importDatastore({
      store,
      prefix: config.datastorePrefix,
      lines: () => readLines(file),
      maxOperationsCount,
      isSoleWriter,
      maxTransactionBytes: TRANSACTION_BYTES,
      rewritePrefix,
      merge,
      dryRun,
      newUid,
      clock,
      signal,
    });
    if (dryRun)
      return `would import ${written} of ${counted(records, 'record')}, the others are there already; nothing was written`;
    const again = resumed ? ', going on where an earlier import was cut off' : '';
    return `imported ${counted(records, 'record')}, ${written} of them written now${again}; all were read back`;
  };
}
