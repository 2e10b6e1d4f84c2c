import { join } from 'node:path';

import type { Logger } from '@podwire/shared/runtime/log';

import type { Scope } from './command-line.js';
import { foreignTypes, readConflist } from './conflist.js';
import type { Disk } from './disk.js';
import { bytesOf, conflistPath } from './inspect.js';
import type { Wanted } from './wanted.js';
import { BINARY_NAMES, isShim } from './wanted/shim-file.js';

export interface UninstallOptions {
  readonly disk: Disk;
  readonly log: Logger;
  readonly scope: Scope;
}

/**
 * Removes the network configuration, so that no pod is made any more, then the programs. What is not Podwire's stays, and what
 * is missing is no failure.
 * @returns the paths that were removed
 * @throws Failure INSTALL_IO; a repeat goes on where this one stopped
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
