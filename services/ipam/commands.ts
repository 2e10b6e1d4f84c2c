import type { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';
import { readRelease } from '@podwire/shared/runtime/process-release';
import { serverSettingsUsage } from '@podwire/shared/settings/usage';
import { formatCount } from '@podwire/shared/words/format-count';

import { readConfig, SETTINGS, type Config } from './config.js';
import type { KubernetesApi } from './api-server/api.js';
import { Events } from './engine/events.js';
import { RecordKeys } from './records/json/keys.js';
import { openStore, type OpenStore } from './startup/datastore.js';
import { exportDatastore, readLines, streamSink, writeAtomically } from './transfer/export.js';
import { byteTarget, ObjectTarget } from './transfer/import-target.js';
import { HistoryImport } from './transfer/history-import.js';
import { importDatastore } from './transfer/import.js';

/** The part of the process that a command needs. */
export interface CommandProcess {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly stdout: Writable;
  readonly stderr: Writable;
  once(event: 'SIGINT' | 'SIGTERM', listener: () => void): unknown;
}

/** Process dependencies of a command. */
export interface CommandDeps {
  readonly process: CommandProcess;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly pid: number;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** The API server of the cluster. @throws Failure INVALID_SETTINGS outside of a cluster */
  readonly kubernetes: () => KubernetesApi;
}

/** Maximum bytes of one import transaction, below etcd's default limit of 1.5 MiB. */
const TRANSACTION_BYTES = 512 * 1024;

/** An import leads, but serves no node: its pod may be one that does, and handles and annotations are written later. */
const UNSERVED = { podName: '', kubernetesHandles: 'none', podAnnotations: 'never' } as const;

/**
 * Runs every command except the service. Standard error gets readable lines, standard output only the
 * requested data.
 * @returns the exit code
 */
export async function runCommand(command: Exclude<Command, { name: 'serve' }>, deps: CommandDeps): Promise<number> {
  switch (command.name) {
    case 'help':
      deps.process.stdout.write(`${USAGE}\n${serverSettingsUsage(SETTINGS)}`);
      return 0;
    case 'version':
      deps.process.stdout.write(`podwire-ipam ${await readRelease()}\n`);
      return 0;
    case 'wrong':
      deps.process.stderr.write(`podwire-ipam: ${command.reason}\n\n${USAGE}`);
      return 2;
    case 'export':
    case 'import':
      return transfer(command, deps);
  }
}

async function transfer(command: ExportCommand | ImportCommand, deps: CommandDeps): Promise<number> {
  const { env, stderr } = deps.process;
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    deps.process.once(signal, () =>
      stop.abort(new Failure('CANCELLED', `${signal} received; the ${command.name} is incomplete: repeat it`)),
    );
  try {
    const config = readConfig(env);
    // The result is written for people, not as a log.
    const events = new Events(createLogger({ service: 'podwire-ipam', level: 'fatal', destination: stderr }));
    const isServing = command.name === 'import' && config.store === 'kubernetes';
    if (isServing) stderr.write('podwire-ipam: the import begins when no podwire-ipam serves the datastore\n');
    const { pid, newUid, clock, random, kubernetes } = deps;
    // Commands have no watchers, and the history for them would hold a whole import.
    const opened = await openStore(
      { ...config, ...UNSERVED },
      {
        ...{ pid, newUid, events, clock, random, kubernetes, identity: isServing ? `import_${newUid()}` : undefined },
        signal: stop.signal,
        watchHistoryCount: 1,
      },
    );
    const signal = AbortSignal.any([stop.signal, opened.refused]);
    try {
      await opened.lead(signal);
      const done = command.name === 'export' ? runExport(command, config, opened) : runImport(command, config, opened);
      stderr.write(`podwire-ipam: ${await done(deps, signal)}\n`);
      return 0;
    } finally {
      await opened.close();
    }
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    stderr.write(`podwire-ipam: ${command.name} failed: ${error.message} (${error.code})\n`);
    return 1;
  }
}

/** @returns the text for the operator */
type Transfer = (deps: CommandDeps, signal: AbortSignal) => Promise<string>;

function runExport({ file }: ExportCommand, config: Config, { store }: OpenStore): Transfer {
  return async ({ process: { stdout }, pid }, signal) => {
    const options = { store, kind: config.store, prefix: config.datastorePrefix, signal };
    const { records, revision, sha256 } =
      file === undefined
        ? await exportDatastore({ ...options, sink: streamSink(stdout) })
        : await writeAtomically(file, pid, (sink) => exportDatastore({ ...options, sink }));
    return `exported ${formatCount(records, 'record')} of revision ${revision}, SHA-256 ${sha256}`;
  };
}

function runImport(command: ImportCommand, config: Config, { store, traits, history }: OpenStore): Transfer {
  return async ({ newUid, clock }, signal) => {
    const { file, dryRun, merge, rewritePrefix } = command;
    const keys = new RecordKeys(config.datastorePrefix, traits);
    const { historyHours: retentionHours } = config;
    const target = history
      ? new ObjectTarget(keys, new HistoryImport({ keys, destination: history, retentionHours, nowMs: clock.nowMs() }))
      : byteTarget(config.datastorePrefix);
    const { records, written, resumed, leftOut, leftOutEntries } = await importDatastore({
      store,
      target,
      prefix: config.datastorePrefix,
      lines: () => readLines(file),
      ...traits,
      maxTransactionBytes: TRANSACTION_BYTES,
      rewritePrefix,
      merge,
      dryRun,
      newUid,
      clock,
      signal,
    });
    const notes = [
      ...[...leftOut].map(([reason, left]) => leftOutNote(reason, left)),
      ...[...leftOutEntries].map(
        ([reason, count]) => `\nleft out: ${formatCount(count, 'entry', 'entries')} of the history: ${reason}`,
      ),
    ].join('');
    if (dryRun)
      return `would import ${written} of ${formatCount(records, 'record')}; the remaining records exist already; nothing was written${notes}`;
    const resumeNote = resumed ? ', continuing an interrupted import' : '';
    return `imported ${formatCount(records, 'record')}, ${written} of them written now${resumeNote}; all records were verified${notes}`;
  };
}

/** Maximum number of named records that were left out for one reason. */
const NAMED_COUNT = 20;

function leftOutNote(reason: string, keys: readonly string[]): string {
  const named = keys.slice(0, NAMED_COUNT).map((key) => key.slice(key.lastIndexOf('/') + 1));
  const more = keys.length > named.length ? ', …' : '';
  return `\nleft out: ${formatCount(keys.length, 'record')} ${reason}: ${named.join(', ')}${more}`;
}

/** The parsed command line of podwire-ipam. */
type Command =
  | { readonly name: 'serve' }
  | { readonly name: 'help' }
  | { readonly name: 'version' }
  | { readonly name: 'wrong'; readonly reason: string }
  | ExportCommand
  | ImportCommand;

interface ExportCommand {
  readonly name: 'export';
  /** File; undefined for the standard output. */
  readonly file: string | undefined;
}

interface ImportCommand {
  readonly name: 'import';
  readonly file: string;
  readonly dryRun: boolean;
  readonly merge: boolean;
  readonly rewritePrefix: boolean;
}

export const USAGE = `usage: podwire-ipam [COMMAND]

  (none)                serve gRPC
  export [FILE]         write every record of the datastore to FILE, or to the standard output
  import FILE           import the records of an export into an empty datastore
      --dry-run         check everything and write nothing
      --merge           accept a datastore with records; refused if a record differs from the file's
      --rewrite-prefix  accept a file with another key prefix and rewrite its keys
  --help, --version

The PODWIRE_IPAM_STORE… and PODWIRE_IPAM_ETCD_… variables name the datastore. It can be imported while no podwire-ipam serves it. The
embedded one can be exported then too, the other ones at any time.

exit codes: 0 done, 1 failed (reason on standard error), 2 invalid command line
`;

/** @param args - the arguments after the program's name */
export function parseCommandLine(args: readonly string[]): Command {
  const [name, ...rest] = args;
  if (args.some((arg) => arg === '--help' || arg === '-h')) return { name: 'help' };
  if (name === undefined || (name === 'serve' && rest.length === 0)) return { name: 'serve' };
  if (name === '--version' && rest.length === 0) return { name: 'version' };
  if (name !== 'export' && name !== 'import') return { name: 'wrong', reason: `unknown command "${name}"` };
  const options = new Set(rest.filter((arg) => arg.startsWith('-')));
  const files = rest.filter((arg) => !arg.startsWith('-'));
  const known = name === 'import' ? ['--dry-run', '--merge', '--rewrite-prefix'] : [];
  const unknown = [...options].find((option) => !known.includes(option));
  if (unknown !== undefined) return { name: 'wrong', reason: `"${name}": unknown option "${unknown}"` };
  const [file, ...more] = files;
  if (more.length > 0) return { name: 'wrong', reason: `"${name}" takes one file; ${files.length} are given` };
  if (name === 'export') return { name, file };
  if (file === undefined) return { name: 'wrong', reason: '"import" requires a file' };
  const has = (option: string): boolean => options.has(option);
  return {
    name,
    file,
    dryRun: has('--dry-run'),
    merge: has('--merge'),
    rewritePrefix: has('--rewrite-prefix'),
  };
}
