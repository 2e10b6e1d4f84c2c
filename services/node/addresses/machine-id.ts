import { randomUUID } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { dirname } from 'node:path';

import { codeOf } from '@podwire/shared/failure/thrown';
import { putDurably } from '@podwire/shared/files/durable-file';

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const DIRECTORY_MODE = 0o700;

/** Identity from the firmware, where it has one. It distinguishes machines with a copy of the same disk. */
const HARDWARE_ID = '/sys/class/dmi/id/product_uuid';

/**
 * The identity of this machine, the same after a reboot. Its file also names the hardware: on other hardware it is a copy, and a
 * new identity begins. Without a file to keep it in, it is the ID of the boot, so that the next process of this boot has the same
 * identity.
 * @param onFailure - called when the file cannot be read or written
 * @param hardwarePath - of the file with the ID of the hardware. Default: the kernel's
 */
export async function readMachineId(
  path: string,
  bootId: string,
  onFailure: (error: unknown) => void,
  hardwarePath = HARDWARE_ID,
): Promise<string> {
  try {
    // The firmware identity is unknown without permission to read it.
    const hardware = await readIfPresent(hardwarePath).catch(() => '');
    return await readOrCreate(path, hardware);
  } catch (error) {
    onFailure(error);
    return bootId;
  }
}

/** @param hardware - empty if it is not known */
async function readOrCreate(path: string, hardware: string): Promise<string> {
  const [stored = '', storedHardware = ''] = (await readIfPresent(path)).split('\n');
  const isCopy = hardware !== '' && storedHardware !== '' && storedHardware !== hardware;
  const id = UUID.test(stored) && !isCopy ? stored : randomUUID();
  if (id === stored && (hardware === '' || storedHardware !== '')) return id;
  await mkdir(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
  await putDurably(path, hardware === '' ? `${id}\n` : `${id}\n${hardware}\n`);
  return id;
}

async function readIfPresent(path: string): Promise<string> {
  try {
    return (await readFile(path, 'utf8')).trim();
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return '';
    throw error;
  }
}
