import { open } from 'node:fs/promises';

/** Makes what was renamed or removed in a directory outlive a power cut: fsync(2). @throws Error of the file system */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
