import { open } from 'node:fs/promises';

/** Makes renames and removals in a directory durable against a power failure: fsync(2). @throws Error of the file system */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
