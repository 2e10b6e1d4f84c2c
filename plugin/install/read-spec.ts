import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Logger } from '@podwire/shared/runtime/log';

import { applySettings, BINARY_NAMES, isShim, requireConflist, type Conflist } from './conflist.js';
import type { InstallSettings } from './settings.js';
import {
  fillPlaceholders,
  ignoredPlaceholders,
  placeholderValues,
  type ExtraProgram,
  type InstallSpec,
} from './spec.js';

export interface InstallSpecSources {
  readonly settings: InstallSettings;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Folder of the package with the shipped shim and network configuration. */
  readonly packageFolder: string;
  readonly log: Logger;
}

/**
 * Reads the files to install.
 * @throws Failure INSTALL_REFUSED when the shim was not built or the network configuration is invalid; INSTALL_IO when
 *   a file cannot be read
 */
export async function readInstallSpec(sources: InstallSpecSources): Promise<InstallSpec> {
  const { settings, log } = sources;
  const extraPrograms = await readExtraPrograms(settings.programsDirectory);
  const known = [...BINARY_NAMES, ...extraPrograms.map(({ name }) => name)];
  const unknown = settings.skippedBinaries.filter((name) => name !== '' && !known.includes(name));
  if (unknown.length > 0)
    log.warn(`SKIP_CNI_BINARIES has no effect on ${unknown.join(', ')}: Podwire does not install it`);
  return {
    binaryDirectory: join('/', settings.root, settings.binaryDirectory),
    configDirectory: join('/', settings.root, settings.configDirectory),
    runtimeBinaryDirectory: settings.binaryDirectory,
    shim: await readShim(sources),
    binaries: BINARY_NAMES.filter((name) => !settings.skippedBinaries.includes(name)),
    updatesBinaries: settings.updatesBinaries,
    programs: extraPrograms.filter(({ name }) => !settings.skippedBinaries.includes(name)),
    conflistName: settings.conflistName,
    conflist: await readSpecConflist(sources),
    conflistMode: settings.conflistMode,
    oldConfName: settings.oldConfName === '' ? undefined : settings.oldConfName,
  };
}

const ANY_EXECUTE_BIT = 0o111;

/** Executable files of a directory, without hidden files and Podwire's own programs. */
async function readExtraPrograms(directory: string): Promise<readonly ExtraProgram[]> {
  if (directory === '') return [];
  const what = 'the directory of programs';
  const next = 'correct PODWIRE_INSTALL_PROGRAMS';
  const names = await withNextStep(() => readdir(directory), what, next);
  const visible = names.sort().filter((name) => !name.startsWith('.') && !BINARY_NAMES.some((own) => own === name));
  const programs = await Promise.all(
    visible.map(async (name) => {
      const path = join(directory, name);
      const stats = await withNextStep(() => stat(path), what, next);
      return stats.isFile() && (stats.mode & ANY_EXECUTE_BIT) !== 0 ? [{ name, path }] : [];
    }),
  );
  return programs.flat();
}

async function readShim({ settings, packageFolder }: InstallSpecSources): Promise<Buffer> {
  const path = settings.shimFile === '' ? join(packageFolder, 'shim', 'build', 'podwire') : settings.shimFile;
  const bytes = await read(path, 'the shim', 'build it (npm run build:native), or set PODWIRE_INSTALL_SHIM');
  if (isShim(bytes)) return bytes;
  throw new Failure('INSTALL_REFUSED', `${path} is not Podwire’s shim: build it, or correct PODWIRE_INSTALL_SHIM`);
}

async function readSpecConflist({ settings, env, packageFolder, log }: InstallSpecSources): Promise<Conflist> {
  const { templateFile, template, mtuBytes, nodeName, logLevel } = settings;
  if (templateFile === '' && template === '') {
    const path = join(packageFolder, 'conflist', '10-podwire.conflist');
    const text = await read(path, 'the shipped network configuration', 'install the package again');
    return applySettings(requireConflist(text.toString(), path), { mtuBytes, nodeName });
  }
  if (templateFile !== '' && template !== '') {
    log.warn('CNI_NETWORK_CONFIG has no effect: CNI_NETWORK_CONFIG_FILE is set');
  }
  const source = templateFile === '' ? 'CNI_NETWORK_CONFIG' : `CNI_NETWORK_CONFIG_FILE (${templateFile})`;
  const text =
    templateFile === ''
      ? template
      : (await read(templateFile, 'the network configuration', 'correct CNI_NETWORK_CONFIG_FILE')).toString();
  const ignored = ignoredPlaceholders(text);
  if (ignored.length > 0) {
    log.warn(`${source} has placeholders that Podwire ignores and fills with an empty value: ${ignored.join(', ')}`);
  }
  return requireConflist(fillPlaceholders(text, placeholderValues({ mtuBytes, nodeName, logLevel, env })), source);
}

function read(path: string, what: string, next: string): Promise<Buffer> {
  return withNextStep(() => readFile(path), what, next);
}

async function withNextStep<Result>(step: () => Promise<Result>, what: string, next: string): Promise<Result> {
  try {
    return await step();
  } catch (error) {
    const reason = messageOf(error);
    throw new Failure('INSTALL_IO', `cannot read ${what} (${reason}): ${next}`, { cause: error });
  }
}
