import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { putDurably, putNewDurably } from '@podwire/shared/files/durable-file';

/** Accessible to its owner only, as it has keys. */
const DIRECTORY_MODE = 0o700;

/**
 * Writes a file for its owner only; an earlier one is replaced.
 * @throws Failure STATE_IO
 */
export async function writeFile(directory: string, name: string, content: string): Promise<void> {
  try {
    await mkdir(directory, { recursive: true, mode: DIRECTORY_MODE });
    await putDurably(join(directory, name), content);
  } catch (cause) {
    throw stateFailure(directory, cause);
  }
}

/**
 * Writes a file for its owner only, unless there is one of that name.
 * @returns whether it was written
 * @throws Failure STATE_IO
 */
export async function writeNewFile(directory: string, name: string, content: string): Promise<boolean> {
  try {
    await mkdir(directory, { recursive: true, mode: DIRECTORY_MODE });
    return await putNewDurably(join(directory, name), content);
  } catch (cause) {
    throw stateFailure(directory, cause);
  }
}

/**
 * @returns undefined where the file does not exist
 * @throws Failure STATE_IO
 */
export async function readOptional(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    if (codeOf(cause) === 'ENOENT') return undefined;
    throw new Failure('STATE_IO', `${path}: cannot be read; check its access rights (${messageOf(cause)})`, { cause });
  }
}

function stateFailure(directory: string, cause: unknown): Failure {
  const advice = 'check that this user may write there, and that the file system has free space';
  return new Failure('STATE_IO', `directory ${directory}: cannot be written; ${advice} (${messageOf(cause)})`, {
    cause,
  });
}
