import { join } from 'node:path';
import type { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';
import { readOwnPackage } from '@podwire/shared/runtime/own-package';
import { settingsUsage } from '@podwire/shared/runtime/usage';

import { USAGE, type Command } from './command-line.js';
import { systemDisk, type Disk } from './disk.js';
import { conflistPath, inspect, surroundingsOf, warningsOf, type Finding } from './inspect.js';
import { install, uninstall } from './install.js';
import { KEEP_LIMITS, keepInstalled, type KeepEvents } from './keep-installed.js';
import { readWanted } from './read-wanted.js';
import { INSTALL_SETTINGS, meaninglessVariables, readInstallSettings, type InstallSettings } from './settings.js';
import { systemShimRunner, type ShimRunner } from './shim-runner.js';
import type { Wanted } from './wanted.js';

/** The part of the process that a command needs. */
export interface CommandProcess {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly stdout: Writable;
  readonly stderr: Writable;
  on(event: 'SIGINT' | 'SIGTERM', listener: () => void): unknown;
}

/** What a command takes from the process it runs in. */
export interface CommandSurroundings {
  readonly process: CommandProcess;
  readonly clock: Clock;
  /** Makes a UUID. */
  readonly newUid: () => string;
}

type FileCommand = Extract<Command, { name: 'install' | 'uninstall' | 'check-install' }>;

/** What every command on files works with. */
interface Tools {
  readonly settings: InstallSettings;
  readonly wanted: Wanted;
  readonly disk: Disk;
  readonly runner: ShimRunner;
  readonly clock: Clock;
  readonly log: Logger;
  readonly stdout: Writable;
  /** Fires at SIGTERM and SIGINT. */
  readonly signal: AbortSignal;
}

/** @returns the exit code */
export async function runCommand(command: Command, around: CommandSurroundings): Promise<number> {
  const { stdout, stderr } = around.process;
  switch (command.name) {
    case 'help':
      stdout.write(`${USAGE}\n${settingsUsage(INSTALL_SETTINGS)}`);
      return 0;
    case 'version':
      stdout.write(`podwire ${(await readPackage()).version}\n`);
      return 0;
    case 'wrong':
      stderr.write(`podwire: ${command.reason}\n\n${USAGE}`);
      return 2;
    case 'install':
    case 'uninstall':
    case 'check-install':
      return onFiles(command, around);
  }
}

async function onFiles(command: FileCommand, around: CommandSurroundings): Promise<number> {
  const { process, clock, newUid } = around;
  const log = createLogger({ service: 'podwire-install', level: 'info', destination: process.stderr });
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => stop.abort());
  try {
    const settings = readInstallSettings(process.env);
    log.level = settings.logLevel;
    const meaningless = meaninglessVariables(process.env);
    if (meaningless.length > 0) log.warn(`these variables mean nothing to Podwire: ${meaningless.join(', ')}`);
    const { folder: packageFolder } = await readPackage();
    const wanted = await readWanted({ settings, env: process.env, packageFolder, log });
    const own = { disk: systemDisk(newUid), runner: systemShimRunner(clock), clock, log, stdout: process.stdout };
    return await runOnFiles(command, { settings, wanted, ...own, signal: stop.signal });
  } catch (error) {
    log.fatal({ err: error }, error instanceof Failure ? error.message : 'a defect: please report it with this line');
    return 1;
  }
}

async function runOnFiles(command: FileCommand, tools: Tools): Promise<number> {
  const { settings, wanted, disk, log } = tools;
  switch (command.name) {
    case 'check-install':
      return check(command, tools);
    case 'uninstall': {
      const removed = await uninstall(wanted, { disk, log, scope: command.scope });
      if (removed.length === 0) log.info('there was nothing of Podwire’s to remove');
      return 0;
    }
    case 'install': {
      const { scope, replaces, waits } = command;
      const waitMs = waits ? settings.waitMs : undefined;
      const changed = await install(wanted, { ...tools, scope, replaces, waitMs });
      if (changed.length === 0) log.info('everything was in place');
      if (settings.stays) await keep(command, tools);
      return 0;
    }
  }
}

async function check({ scope }: FileCommand, { wanted, disk, runner, stdout }: Tools): Promise<number> {
  const findings = await inspect(wanted, { disk, runner, scope });
  const around = scope === 'all' ? await surroundingsOf(wanted, { disk, runner }) : { warnings: [], faults: [] };
  for (const { path, text } of findings) stdout.write(`${path} ${text}\n`);
  for (const fault of around.faults) stdout.write(`${fault}\n`);
  for (const warning of around.warnings) stdout.write(`warning: ${warning}\n`);
  const isWhole = findings.length + around.faults.length === 0;
  if (isWhole) stdout.write('everything is in place\n');
  return isWhole ? 0 : 1;
}

function keep({ scope }: FileCommand, tools: Tools): Promise<void> {
  const { wanted, settings, clock, signal, log } = tools;
  log.info(`staying: files are looked at every ${settings.checkIntervalMs} ms`);
  return keepInstalled({
    inspect: () => inspect(wanted, { ...tools, scope }),
    warnings: () => (scope === 'all' ? warningsOf(wanted, tools) : Promise.resolve([])),
    repair: (damage) => repair(damage, tools),
    events: keepEvents(log),
    clock,
    intervalMs: settings.checkIntervalMs,
    limits: KEEP_LIMITS,
    signal,
  });
}

/**
 * Reinstalls damaged files only; the rest may be of another release by now. Does not wait for the plugin: pods exist,
 * and a runtime cannot delete them without the programs and the configuration, which may be why STATUS hangs.
 */
function repair(damage: readonly Finding[], tools: Tools): Promise<unknown> {
  const { wanted } = tools;
  const isDamaged = (path: string): boolean => damage.some((finding) => finding.path === path);
  const binaries = wanted.binaries.filter((name) => isDamaged(join(wanted.binaryDirectory, name)));
  const programs = wanted.programs.filter(({ name }) => isDamaged(join(wanted.binaryDirectory, name)));
  const scope = isDamaged(conflistPath(wanted)) ? 'all' : 'binaries';
  return install(
    { ...wanted, binaries, programs, updatesBinaries: true },
    { ...tools, scope, replaces: true, waitMs: undefined },
  );
}

function keepEvents(log: Logger): KeepEvents {
  const next = 'find out who does that (another installer?)';
  return {
    repairing: ({ path, text }) => log.warn(`${path} ${text}: putting it back; ${next}`),
    leftAlone: ({ path, text }) => log.warn(`${path} ${text}: left as it is, as somebody meant it`),
    givenUp: ({ path, text }) =>
      log.error(`${path} ${text}, again after ${KEEP_LIMITS.count} repairs: not put back for a while; ${next}`),
    warned: (text) => log.warn(text),
    failed: (error) => log.error({ err: error }, 'cannot put back what was changed; it is tried again'),
  };
}

const readPackage = () => readOwnPackage(import.meta.url, '@podwire/plugin');
