import { join } from 'node:path';
import type { Writable } from 'node:stream';

import { withInstallEnv } from '@podwire/shared/chain/install-env';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';
import { readOwnPackage } from '@podwire/shared/runtime/own-package';
import { settingsUsage } from '@podwire/shared/settings/usage';

import { USAGE, type Command } from './command-line.js';
import { systemDisk, type Disk } from './disk.js';
import { conflistPath, inspect, inspectEnvironment, warningsOf, type Finding } from './inspect.js';
import { install, uninstall } from './install.js';
import { REPAIR_LIMITS, reconcileInstallation, type ReconcileEvents } from './reconciler.js';
import { readInstallSpec } from './read-spec.js';
import { INSTALL_SETTINGS, ignoredVariables, readInstallSettings, type InstallSettings } from './settings.js';
import { systemShimRunner, type ShimRunner } from './shim-runner.js';
import type { InstallSpec } from './spec.js';

/** The part of the process that a command needs. */
export interface CommandProcess {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly stdout: Writable;
  readonly stderr: Writable;
  on(event: 'SIGINT' | 'SIGTERM', listener: () => void): unknown;
}

/** Dependencies of a command on its process. */
export interface CommandDeps {
  readonly process: CommandProcess;
  readonly clock: Clock;
  /** Generates a UUID. */
  readonly newUid: () => string;
}

type FileCommand = Extract<Command, { name: 'install' | 'uninstall' | 'check-install' }>;

/** Dependencies of the commands that work on files. */
interface Tools {
  readonly settings: InstallSettings;
  readonly spec: InstallSpec;
  readonly disk: Disk;
  readonly runner: ShimRunner;
  readonly clock: Clock;
  readonly log: Logger;
  readonly stdout: Writable;
  /** Fires on SIGTERM and SIGINT. */
  readonly signal: AbortSignal;
}

/** @returns the exit code */
export async function runCommand(command: Command, deps: CommandDeps): Promise<number> {
  const { stdout, stderr } = deps.process;
  switch (command.name) {
    case 'help':
      stdout.write(`${USAGE}\n${settingsUsage(INSTALL_SETTINGS)}`);
      return 0;
    case 'version':
      stdout.write(`podwire ${(await readPackage()).version}\n`);
      return 0;
    case 'invalid':
      stderr.write(`podwire: ${command.reason}\n\n${USAGE}`);
      return 2;
    case 'install':
    case 'uninstall':
    case 'check-install':
      return runFileCommand(command, deps);
  }
}

async function runFileCommand(command: FileCommand, deps: CommandDeps): Promise<number> {
  const { process, clock, newUid } = deps;
  const log = createLogger({ service: 'podwire-install', level: 'info', destination: process.stderr });
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => stop.abort());
  try {
    const env = await withInstallEnv(process.env);
    const settings = readInstallSettings(env);
    log.level = settings.logLevel;
    const ignored = ignoredVariables(env);
    if (ignored.length > 0) log.warn(`ignored environment variables: ${ignored.join(', ')}`);
    const { folder: packageFolder } = await readPackage();
    const spec = await readInstallSpec({ settings, env, packageFolder, log });
    const own = { disk: systemDisk(newUid), runner: systemShimRunner(clock), clock, log, stdout: process.stdout };
    return await execute(command, { settings, spec, ...own, signal: stop.signal });
  } catch (error) {
    log.fatal({ err: error }, error instanceof Failure ? error.message : 'defect: please report it with this line');
    return 1;
  }
}

async function execute(command: FileCommand, tools: Tools): Promise<number> {
  const { settings, spec, disk, log } = tools;
  switch (command.name) {
    case 'check-install':
      return check(command, tools);
    case 'uninstall': {
      const removed = await uninstall(spec, { disk, log, scope: command.scope });
      if (removed.length === 0) log.info('nothing to remove: no file of Podwire is installed');
      return 0;
    }
    case 'install': {
      const { scope, replaces, waits } = command;
      const waitMs = waits ? settings.waitMs : undefined;
      const changed = await install(spec, { ...tools, scope, replaces, waitMs });
      if (changed.length === 0) log.info('nothing to install: all files are up to date');
      if (settings.stays) await reconcile(command, tools);
      return 0;
    }
  }
}

async function check({ scope }: FileCommand, { spec, disk, runner, stdout }: Tools): Promise<number> {
  const findings = await inspect(spec, { disk, runner, scope });
  const environment = scope === 'all' ? await inspectEnvironment(spec, { disk, runner }) : { warnings: [], faults: [] };
  for (const { path, text } of findings) stdout.write(`${path} ${text}\n`);
  for (const fault of environment.faults) stdout.write(`${fault}\n`);
  for (const warning of environment.warnings) stdout.write(`warning: ${warning}\n`);
  const isComplete = findings.length + environment.faults.length === 0;
  if (isComplete) stdout.write('the installation is complete\n');
  return isComplete ? 0 : 1;
}

function reconcile({ scope }: FileCommand, tools: Tools): Promise<void> {
  const { spec, settings, clock, signal, log } = tools;
  log.info(`checking the installed files every ${settings.checkIntervalMs} ms`);
  return reconcileInstallation({
    inspect: () => inspect(spec, { ...tools, scope }),
    warnings: () => (scope === 'all' ? warningsOf(spec, tools) : Promise.resolve([])),
    repair: (damage) => repair(damage, tools),
    events: reconcileEvents(log),
    clock,
    intervalMs: settings.checkIntervalMs,
    limits: REPAIR_LIMITS,
    signal,
  });
}

/**
 * Reinstalls damaged files only, as intact ones may be of another release by now. Does not wait for the plugin: the runtime
 * cannot delete pods without these files, and their absence may be why STATUS hangs.
 */
function repair(damage: readonly Finding[], tools: Tools): Promise<unknown> {
  const { spec } = tools;
  const isDamaged = (path: string): boolean => damage.some((finding) => finding.path === path);
  const binaries = spec.binaries.filter((name) => isDamaged(join(spec.binaryDirectory, name)));
  const programs = spec.programs.filter(({ name }) => isDamaged(join(spec.binaryDirectory, name)));
  const scope = isDamaged(conflistPath(spec)) ? 'all' : 'binaries';
  return install(
    { ...spec, binaries, programs, updatesBinaries: true },
    { ...tools, scope, replaces: true, waitMs: undefined },
  );
}

function reconcileEvents(log: Logger): ReconcileEvents {
  const nextStep = 'check whether another installer changes it';
  return {
    repairing: ({ path, text }) => log.warn(`${path} ${text}: restoring it; ${nextStep}`),
    kept: ({ path, text }) => log.warn(`${path} ${text}: kept, as it may be intended`),
    suspended: ({ path, text }) =>
      log.error(`${path} ${text}, again after ${REPAIR_LIMITS.count} repairs: repairs are suspended; ${nextStep}`),
    warned: (text) => log.warn(text),
    failed: (error) => log.error({ err: error }, 'checking or restoring the installed files failed; retrying'),
  };
}

const readPackage = () => readOwnPackage(import.meta.url, '@podwire/plugin');
