import { chmod, chown, mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

/** Passwords of sessions are in it: for its owner and the group of its directory, which is BIRD's, alone. */
const MODE = 0o640;

/**
 * BIRD's configuration on disk. A change is written beside it, checked there, and takes its place by a rename, so that
 * BIRD never finds half of one, whenever it starts.
 */
export class ConfigFile {
  readonly path: string;
  /** Where a change waits until it has been checked. */
  readonly candidatePath: string;

  constructor(path: string) {
    this.path = path;
    this.candidatePath = `${path}.candidate`;
  }

  /** @returns undefined when there is none */
  async read(): Promise<string | undefined> {
    try {
      return await readFile(this.path, 'utf8');
    } catch {
      return undefined;
    }
  }

  /** Makes the directory when it is missing, and writes the candidate through to the disk. */
  async propose(text: string): Promise<void> {
    const directory = dirname(this.path);
    await mkdir(directory, { recursive: true });
    const { gid } = await stat(directory);
    await rm(this.candidatePath, { force: true });
    const file = await open(this.candidatePath, 'wx', MODE);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await chown(this.candidatePath, -1, gid);
    await chmod(this.candidatePath, MODE);
  }

  /** The candidate becomes the configuration. */
  accept(): Promise<void> {
    return rename(this.candidatePath, this.path);
  }

  /** The candidate is gone. */
  reject(): Promise<void> {
    return rm(this.candidatePath, { force: true });
  }
}
