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
  merged,
  readConflist,
  statusRequest,
  writeConflist,
} from './conflist.js';
import { Changes, holds, type Disk } from './disk.js';
import { bytesOf, conflistPath, versionsOf, warningsOf } from './inspect.js';
import type { ShimRunner } from './shim-runner.js';
import type { GivenProgram, Wanted } from './wanted.js';

export interface InstallOptions {
  readonly disk: Disk;
  readonly runner: ShimRunner;
  readonly clock: Clock;
  readonly log: Logger;
  /** Fires when the installation is to be given up. */
  readonly signal: AbortSignal;
  readonly scope: Scope;
  /** Whether files that are not Podwire's are replaced. */
  readonly replaces: boolean;
  /** How long to wait for the plugin to become ready, in milliseconds; undefined to not wait. */
  readonly waitMs: number | undefined;
}

/** Whoever staged a file that long ago has died since. */
const ABANDONED_MS = 3_600_000;

const STATUS_PAUSE_MS = 500;

/** Minimum timeout of a STATUS call: longer than the shim waits for an absent plugin (5 s) before it reports that. */
const MIN_STATUS_MS = 7_000;

/**
 * Puts the programs in place, then the network configuration, which makes container runtimes use them. A repeat changes nothing.
 * When it fails, what was there before is there again.
 * @returns the paths that were changed
 * @throws Failure INSTALL_REFUSED when something in the way is not Podwire's, or the program does not run here; INSTALL_IO;
 *   DEADLINE_EXCEEDED when the plugin did not become ready; CANCELLED
 */
export async function install(wanted: Wanted, options: InstallOptions): Promise<readonly string[]> {
  const { disk, log, scope } = options;
  const changes = new Changes(disk);
  try {
    await refuseForeign(wanted, options);
    await prepareDirectories(wanted, options);
    for (const name of wanted.binaries) await putBinary(wanted, { name, changes, ...options });
    for (const program of wanted.programs) await putProgram(wanted, { program, changes, ...options });
    if (scope === 'all') {
      await untilReady(wanted, options);
      await putConflist(wanted, { changes, ...options });
      await removeOldConf(wanted, { changes, ...options });
    }
  } catch (error) {
    const left = await changes.undo();
    for (const what of left) log.error(`not undone: ${what}`);
    throw error;
  }
  if (scope === 'all') for (const warning of await warningsOf(wanted, options)) log.warn(warning);
  return changes.paths;
}

/** Everything that is refused, is so before anything is changed. */
async function refuseForeign(wanted: Wanted, { disk, scope, replaces }: InstallOptions): Promise<void> {
  const refuse = (path: string, what: string): never => {
    throw new Failure('INSTALL_REFUSED', `${path} ${what}: move it away, or use --replace`);
  };
  for (const name of wanted.binaries) {
    const path = join(wanted.binaryDirectory, name);
    const standing = await disk.look(path);
    const bytes = bytesOf(standing);
    if (standing.kind === 'other') throw inTheWay(path);
    if (!replaces && bytes !== undefined && !isShim(bytes)) refuse(path, 'is another program');
  }
  for (const { name } of wanted.programs) {
    const path = join(wanted.binaryDirectory, name);
    if ((await disk.look(path)).kind === 'other') throw inTheWay(path);
  }
  if (scope === 'binaries') return;
  const path = conflistPath(wanted);
  const standing = await disk.look(path);
  if (standing.kind === 'other') throw inTheWay(path);
  const content = readConflist(bytesOf(standing)?.toString() ?? '');
  if (!replaces && content.kind === 'foreign') {
    refuse(path, `is not Podwire’s, it has plugins of type ${content.types.join(', ')}`);
  }
}

function inTheWay(path: string): Failure {
  return new Failure('INSTALL_REFUSED', `${path} is a directory, a device, or far too large: move it away`);
}

async function prepareDirectories(wanted: Wanted, { disk, clock, scope }: InstallOptions): Promise<void> {
  const directories = scope === 'all' ? [wanted.binaryDirectory, wanted.configDirectory] : [wanted.binaryDirectory];
  for (const directory of directories) {
    await disk.makeDirectory(directory);
    // Tidying is no reason to fail: with nothing to change, nothing has to be writable.
    await disk.sweep(directory, clock.nowMs() - ABANDONED_MS).catch(() => undefined);
  }
}

interface Step extends InstallOptions {
  readonly changes: Changes;
}

async function putBinary(wanted: Wanted, step: Step & { readonly name: string }): Promise<void> {
  const { name, disk, runner, changes, log } = step;
  const path = join(wanted.binaryDirectory, name);
  const standing = await disk.look(path);
  const isIdentical = holds(standing, wanted.shim) && standing.kind === 'file' && standing.mode === BINARY_MODE;
  const isKept = !wanted.updatesBinaries && bytesOf(standing) !== undefined;
  if (!isIdentical && !isKept) {
    await changes.put(path, { bytes: wanted.shim, mode: BINARY_MODE }, (staged) => runner.version(staged));
    log.info(`installed ${path}`);
  }
  await runner.version(path);
}

/** Puts a given program in place where it is missing. What is there may be newer, or another package's. */
async function putProgram(wanted: Wanted, step: Step & { readonly program: GivenProgram }): Promise<void> {
  const { program, disk, runner, changes, log, replaces } = step;
  const path = join(wanted.binaryDirectory, program.name);
  const standing = await disk.look(path);
  if (standing.kind !== 'absent' && !replaces) return;
  const bytes = bytesOf(await disk.look(program.path));
  if (bytes === undefined)
    throw new Failure('INSTALL_REFUSED', `${program.path} is no file: correct PODWIRE_INSTALL_PROGRAMS`);
  if (holds(standing, bytes)) return;
  await changes.put(path, { bytes, mode: BINARY_MODE }, (staged) => runner.version(staged));
  log.info(`installed ${path} of ${program.path}`);
}

/** Waits until the plugin says that pods can be made, as long as the settings allow. */
async function untilReady(wanted: Wanted, options: InstallOptions): Promise<void> {
  const { disk, runner, clock, log, signal, waitMs } = options;
  if (waitMs === undefined) return;
  const [program] = BINARY_NAMES;
  const path = join(wanted.binaryDirectory, program);
  if ((await disk.look(path)).kind === 'absent') {
    throw new Failure('INSTALL_REFUSED', `${path} is missing, and is needed to ask for STATUS: do not skip it`);
  }
  const endMs = clock.nowMs() + waitMs;
  let told: string | undefined;
  for (;;) {
    const timeoutMs = Math.max(MIN_STATUS_MS, endMs - clock.nowMs());
    const configuration = statusRequest(wanted.conflist);
    const binaryDirectory = wanted.runtimeBinaryDirectory;
    const reason = await runner.status({ path, binaryDirectory, configuration, timeoutMs, signal });
    if (signal.aborted) throw cancelled();
    if (reason === undefined) return;
    if (reason !== told) log.info(`the plugin is not ready: ${reason}`);
    told = reason;
    if (clock.nowMs() + STATUS_PAUSE_MS >= endMs) {
      throw new Failure(
        'DEADLINE_EXCEEDED',
        `the plugin is not ready after ${waitMs} ms, so the network configuration was not written: ${reason}; ` +
          'check podwire-plugin and its services on this node, or use --no-wait',
      );
    }
    if ((await clock.sleep(STATUS_PAUSE_MS, signal)) === 'aborted') throw cancelled();
  }
}

function cancelled(): Failure {
  return new Failure('CANCELLED', 'a signal was received; what was begun was undone: repeat the installation');
}

async function putConflist(wanted: Wanted, { disk, runner, changes, log }: Step): Promise<void> {
  const path = conflistPath(wanted);
  const standing = await disk.look(path);
  const content = readConflist(bytesOf(standing)?.toString() ?? '');
  const whole = content.kind === 'ours' ? merged(wanted.conflist, content.conflist) : wanted.conflist;
  const conflist = removeUnsupportedVersions(whole, await versionsOf(whole, wanted, runner));
  const bytes = Buffer.from(writeConflist(conflist));
  if (holds(standing, bytes) && standing.kind === 'file' && standing.mode === wanted.conflistMode) return;
  await changes.put(path, { bytes, mode: wanted.conflistMode });
  const kept = foreignTypes(wanted.conflist, conflist);
  log.info(`installed ${path}${kept.length === 0 ? '' : `, keeping its ${kept.join(', ')}`}`);
}

async function removeOldConf(wanted: Wanted, { disk, changes, log }: Step): Promise<void> {
  const { oldConfName, conflistName, configDirectory } = wanted;
  if (oldConfName === undefined || oldConfName === conflistName) return;
  const path = join(configDirectory, oldConfName);
  const { kind } = await disk.look(path);
  if (kind === 'absent') return;
  if (kind === 'other') throw inTheWay(path);
  await changes.remove(path);
  log.info(`removed ${path}, as CNI_OLD_CONF_NAME says`);
}

interface UninstallOptions {
  readonly disk: Disk;
  readonly log: Logger;
  readonly scope: Scope;
}

/**
 * Removes the network configuration first, so that no more pods are created, then the programs. Foreign files are kept;
 * missing files are no failure.
 * @returns the paths that were removed
 * @throws Failure INSTALL_IO; a repeat continues where this one stopped
 */
export async function uninstall(wanted: Wanted, { disk, log, scope }: UninstallOptions): Promise<readonly string[]> {
  const removed: string[] = [];
  const remove = async (path: string, note = ''): Promise<void> => {
    await disk.remove(path);
    removed.push(path);
    log.info(`removed ${path}${note}`);
  };
  if (scope === 'all') {
    const path = conflistPath(wanted);
    const standing = await disk.look(path);
    const content = readConflist(bytesOf(standing)?.toString() ?? '');
    if (content.kind === 'ours') {
      const others = foreignTypes(wanted.conflist, content.conflist);
      await remove(path, others.length === 0 ? '' : `, and with it the chain’s ${others.join(', ')}`);
    } else if (standing.kind !== 'absent') log.warn(`${path} is not Podwire’s, and stays`);
  }
  for (const name of BINARY_NAMES) {
    const path = join(wanted.binaryDirectory, name);
    const standing = await disk.look(path);
    const bytes = bytesOf(standing);
    if (bytes !== undefined && isShim(bytes)) await remove(path);
    else if (standing.kind !== 'absent') log.warn(`${path} is not Podwire’s, and stays`);
  }
  return removed;
}
