import { join } from 'node:path';

import { removeUnsupportedVersions } from '@podwire/shared/chain/chain';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Scope } from './command-line.js';
import {
  BINARY_MODE,
  BINARY_NAMES,
  foreignTypes,
  isShim,
  mergeConflists,
  readConflist,
  statusRequest,
  withOneLimiter,
  writeConflist,
} from './conflist.js';
import { Changes, hasContent, type Disk } from './disk.js';
import { bytesOf, conflistPath, versionsOf, warningsOf } from './inspect.js';
import type { ShimRunner } from './shim-runner.js';
import type { ExtraProgram, InstallSpec } from './spec.js';

export interface InstallOptions {
  readonly disk: Disk;
  readonly runner: ShimRunner;
  readonly clock: Clock;
  readonly log: Logger;
  /** Cancels the installation. */
  readonly signal: AbortSignal;
  readonly scope: Scope;
  /** Whether files that are not Podwire's are replaced. */
  readonly replaces: boolean;
  /** How long to wait for the plugin to become ready, in milliseconds; undefined to not wait. */
  readonly waitMs: number | undefined;
}

/** Age from which a staged file is a leftover of a crashed installer. */
const LEFTOVER_MS = 3_600_000;

const STATUS_PAUSE_MS = 500;

/** Minimum timeout of a STATUS call: longer than the shim waits for an absent plugin (5 s) before it reports that. */
const MIN_STATUS_MS = 7_000;

/**
 * Installs the programs, then the network configuration, which makes container runtimes use them. Idempotent. Restores the
 * previous files when it fails.
 * @returns the changed paths
 * @throws Failure INSTALL_REFUSED when an existing file is not Podwire's or the program does not run here; INSTALL_IO;
 *   DEADLINE_EXCEEDED when the plugin did not become ready; CANCELLED
 */
export async function install(spec: InstallSpec, options: InstallOptions): Promise<readonly string[]> {
  const { disk, log, scope } = options;
  const changes = new Changes(disk);
  try {
    await rejectForeign(spec, options);
    await prepareDirectories(spec, options);
    for (const name of spec.binaries) await putBinary(spec, { name, changes, ...options });
    for (const program of spec.programs) await putProgram(spec, { program, changes, ...options });
    if (scope === 'all') {
      await waitUntilReady(spec, options);
      await putConflist(spec, { changes, ...options });
      await removeOldConf(spec, { changes, ...options });
    }
  } catch (error) {
    const notRestored = await changes.undo();
    for (const text of notRestored) log.error(`rollback is incomplete: ${text}`);
    throw error;
  }
  if (scope === 'all') for (const warning of await warningsOf(spec, options)) log.warn(warning);
  return changes.paths;
}

/** Rejects foreign files before anything is changed. */
async function rejectForeign(spec: InstallSpec, { disk, scope, replaces }: InstallOptions): Promise<void> {
  const reject = (path: string, reason: string): never => {
    throw new Failure('INSTALL_REFUSED', `${path} ${reason}: move it elsewhere, or use --replace`);
  };
  for (const name of spec.binaries) {
    const path = join(spec.binaryDirectory, name);
    const state = await disk.inspect(path);
    const bytes = bytesOf(state);
    if (state.kind === 'other') throw blockedPathFailure(path);
    if (!replaces && bytes !== undefined && !isShim(bytes)) reject(path, 'is another program');
  }
  for (const { name } of spec.programs) {
    const path = join(spec.binaryDirectory, name);
    if ((await disk.inspect(path)).kind === 'other') throw blockedPathFailure(path);
  }
  if (scope === 'binaries') return;
  const path = conflistPath(spec);
  const state = await disk.inspect(path);
  if (state.kind === 'other') throw blockedPathFailure(path);
  const content = readConflist(bytesOf(state)?.toString() ?? '');
  if (!replaces && content.kind === 'foreign') {
    reject(path, `is not Podwire’s, it has plugins of type ${content.types.join(', ')}`);
  }
}

function blockedPathFailure(path: string): Failure {
  return new Failure('INSTALL_REFUSED', `${path} is a directory, a device, or too large: move it elsewhere`);
}

async function prepareDirectories(spec: InstallSpec, { disk, clock, scope }: InstallOptions): Promise<void> {
  const directories = scope === 'all' ? [spec.binaryDirectory, spec.configDirectory] : [spec.binaryDirectory];
  for (const directory of directories) {
    await disk.makeDirectory(directory);
    // A failure is ignored: if nothing has to be installed, the directory need not be writable.
    await disk.sweep(directory, clock.nowMs() - LEFTOVER_MS).catch(() => undefined);
  }
}

interface Step extends InstallOptions {
  readonly changes: Changes;
}

async function putBinary(spec: InstallSpec, step: Step & { readonly name: string }): Promise<void> {
  const { name, disk, runner, changes, log } = step;
  const path = join(spec.binaryDirectory, name);
  const state = await disk.inspect(path);
  const isIdentical = hasContent(state, spec.shim) && state.kind === 'file' && state.mode === BINARY_MODE;
  const isKept = !spec.updatesBinaries && bytesOf(state) !== undefined;
  if (!isIdentical && !isKept) {
    await changes.put(path, { bytes: spec.shim, mode: BINARY_MODE }, (staged) => runner.version(staged));
    log.info(`installed ${path}`);
  }
  await runner.version(path);
}

/** Installs an extra program if it is missing. An existing one may be newer, or belong to another package. */
async function putProgram(spec: InstallSpec, step: Step & { readonly program: ExtraProgram }): Promise<void> {
  const { program, disk, runner, changes, log, replaces } = step;
  const path = join(spec.binaryDirectory, program.name);
  const state = await disk.inspect(path);
  if (state.kind !== 'absent' && !replaces) return;
  const bytes = bytesOf(await disk.inspect(program.path));
  if (bytes === undefined)
    throw new Failure('INSTALL_REFUSED', `${program.path} is not a file: correct PODWIRE_INSTALL_PROGRAMS`);
  if (hasContent(state, bytes)) return;
  await changes.put(path, { bytes, mode: BINARY_MODE }, (staged) => runner.version(staged));
  log.info(`installed ${path} from ${program.path}`);
}

/** Waits until STATUS of the plugin succeeds, up to the configured time. */
async function waitUntilReady(spec: InstallSpec, options: InstallOptions): Promise<void> {
  const { disk, runner, clock, log, signal, waitMs } = options;
  if (waitMs === undefined) return;
  const [program] = BINARY_NAMES;
  const path = join(spec.binaryDirectory, program);
  if ((await disk.inspect(path)).kind === 'absent') {
    throw new Failure('INSTALL_REFUSED', `${path} is missing, but STATUS needs it: do not skip it`);
  }
  const endMs = clock.monotonicMs() + waitMs;
  const loggedReasons = new Set<string>();
  for (;;) {
    const timeoutMs = Math.max(MIN_STATUS_MS, Math.ceil(endMs - clock.monotonicMs()));
    const configuration = statusRequest(spec.conflist);
    const binaryDirectory = spec.runtimeBinaryDirectory;
    const reason = await runner.status({ path, binaryDirectory, configuration, timeoutMs, signal });
    if (signal.aborted) throw cancelledFailure();
    if (reason === undefined) return;
    // Reasons differ in times, and can alternate.
    const kind = reason.replaceAll(/\d+/g, '');
    if (!loggedReasons.has(kind)) log.info(`the plugin is not ready: ${reason}`);
    loggedReasons.add(kind);
    if (clock.monotonicMs() + STATUS_PAUSE_MS >= endMs) {
      throw new Failure(
        'DEADLINE_EXCEEDED',
        `the plugin is not ready after ${waitMs} ms, so the network configuration was not written: ${reason}; ` +
          'check podwire-node on this node, and podwire-ipam, or use --no-wait',
      );
    }
    if ((await clock.sleep(STATUS_PAUSE_MS, signal)) === 'aborted') throw cancelledFailure();
  }
}

function cancelledFailure(): Failure {
  return new Failure('CANCELLED', 'a signal was received and the installation was rolled back: repeat it');
}

async function putConflist(spec: InstallSpec, { disk, runner, changes, log }: Step): Promise<void> {
  const path = conflistPath(spec);
  const state = await disk.inspect(path);
  const content = readConflist(bytesOf(state)?.toString() ?? '');
  const complete =
    content.kind === 'ours' ? mergeConflists(spec.conflist, content.conflist) : withOneLimiter(spec.conflist);
  const conflist = removeUnsupportedVersions(complete, await versionsOf(complete, spec, runner));
  const bytes = Buffer.from(writeConflist(conflist));
  if (hasContent(state, bytes) && state.kind === 'file' && state.mode === spec.conflistMode) return;
  await changes.put(path, { bytes, mode: spec.conflistMode });
  const keptTypes = foreignTypes(spec.conflist, conflist);
  log.info(`installed ${path}${keptTypes.length === 0 ? '' : `, keeping its ${keptTypes.join(', ')}`}`);
}

async function removeOldConf(spec: InstallSpec, { disk, changes, log }: Step): Promise<void> {
  const { oldConfName, conflistName, configDirectory } = spec;
  if (oldConfName === undefined || oldConfName === conflistName) return;
  const path = join(configDirectory, oldConfName);
  const { kind } = await disk.inspect(path);
  if (kind === 'absent') return;
  if (kind === 'other') throw blockedPathFailure(path);
  await changes.remove(path);
  log.info(`removed ${path}, as CNI_OLD_CONF_NAME says`);
}

interface UninstallOptions {
  readonly disk: Disk;
  readonly log: Logger;
  readonly scope: Scope;
}

/**
 * Removes the network configuration, so that no more pods are created, then the programs. Keeps foreign files and ignores
 * missing ones.
 * @returns the removed paths
 * @throws Failure INSTALL_IO; a repeat continues where this call stopped
 */
export async function uninstall(spec: InstallSpec, { disk, log, scope }: UninstallOptions): Promise<readonly string[]> {
  const removed: string[] = [];
  const remove = async (path: string, note = ''): Promise<void> => {
    await disk.remove(path);
    removed.push(path);
    log.info(`removed ${path}${note}`);
  };
  if (scope === 'all') {
    const path = conflistPath(spec);
    const state = await disk.inspect(path);
    const content = readConflist(bytesOf(state)?.toString() ?? '');
    if (content.kind === 'ours') {
      const otherTypes = foreignTypes(spec.conflist, content.conflist);
      await remove(path, otherTypes.length === 0 ? '' : `, including the chain’s ${otherTypes.join(', ')}`);
    } else if (state.kind !== 'absent') log.warn(`${path} is not Podwire’s and is kept`);
  }
  for (const name of BINARY_NAMES) {
    const path = join(spec.binaryDirectory, name);
    const state = await disk.inspect(path);
    const bytes = bytesOf(state);
    if (bytes !== undefined && isShim(bytes)) await remove(path);
    else if (state.kind !== 'absent') log.warn(`${path} is not Podwire’s and is kept`);
  }
  return removed;
}
