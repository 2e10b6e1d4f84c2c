import { unlinkSync } from 'node:fs';
import { link, mkdtemp, open, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';

import { codeOf } from '../failure/thrown.js';
import { syncDirectory } from './sync-directory.js';

/** Suffix of the name of a file that is being written. */
export const WRITING = '.writing';

/** Accessible to root only, like all files of a state directory. */
const STATE_FILE_MODE = 0o600;

/**
 * Replaces a file durably: once this resolves, it survives a power failure; a crash in between leaves the previous file
 * intact. Its directory has to exist.
 * @throws Error of the file system; the earlier file is unchanged
 */
export async function putDurably(path: string, text: string): Promise<void> {
  try {
    await writeSynced(path + WRITING, text);
    await rename(path + WRITING, path);
  } catch (error) {
    // An incomplete file takes space that a later file may need.
    await rm(path + WRITING, { force: true }).catch(() => undefined);
    throw error;
  }
  await syncDirectory(dirname(path));
}

/**
 * Writes a file durably unless there is one of its name, also if another process writes it at the same time. Its directory
 * has to exist.
 * @returns whether it was written
 * @throws Error of the file system
 */
export async function putNewDurably(path: string, text: string): Promise<boolean> {
  const folder = await mkdtemp(join(dirname(path), '.new-'));
  try {
    const file = join(folder, basename(path));
    await writeSynced(file, text);
    await link(file, path);
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false;
    throw error;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  await syncDirectory(dirname(path));
  return true;
}

/** Removes a file that was not written completely; its writer reports why. */
export function removeIfPossible(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // The caller reports the write error.
  }
}

async function writeSynced(path: string, text: string): Promise<void> {
  const file = await open(path, 'w', STATE_FILE_MODE);
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}
