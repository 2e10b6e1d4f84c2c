import { randomUUID } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { dirname } from 'node:path';

import { codeOf } from '@podwire/shared/failure/thrown';
import { putDurably } from '@podwire/shared/files/durable-file';

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const DIRECTORY_MODE = 0o700;

/**
 * The identity of this machine, the same after a reboot. Without a file to keep it in, it is the ID of the boot, so that the next
 * process of this boot has the same identity.
 * @param onFailure - called when the file cannot be read or written
 */
export async function readMachineId(
  path: string,
  bootId: string,
  onFailure: (error: unknown) => void,
): Promise<string> {
  try {
    return await readOrCreate(path);
  } catch (error) {
    onFailure(error);
    return bootId;
  }
}

async function readOrCreate(path: string): Promise<string> {
  try {
    const text = (await readFile(path, 'utf8')).trim();
    if (UUID.test(text)) return text;
  } catch (error) {
    if (codeOf(error) !== 'ENOENT') throw error;
  }
  const id = randomUUID();
  await mkdir(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
  await putDurably(path, `${id}\n`);
  return id;
}
