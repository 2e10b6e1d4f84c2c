import { messageOf } from '@podwire/shared/failure/thrown';

import type { Disk, FileContent, Standing } from './disk.js';

interface Change {
  readonly path: string;
  readonly before: Standing;
  /** What was put there; undefined when it was removed. */
  readonly after: Buffer | undefined;
}

/** The changes that an installation made so far, each with what was there before. */
export class Changes {
  readonly #disk: Disk;
  readonly #made: Change[] = [];

  constructor(disk: Disk) {
    this.#disk = disk;
  }

  /** Paths that were changed, in that order. */
  get paths(): readonly string[] {
    return this.#made.map(({ path }) => path);
  }

  /**
   * Puts a file in place.
   * @param check - looks at the file before it is visible; when it throws, nothing has changed
   */
  async put(path: string, content: FileContent, check?: (staged: string) => Promise<void>): Promise<void> {
    const before = await this.#disk.look(path);
    const staged = await this.#disk.stage(path, content);
    try {
      await check?.(staged);
      // First: a rename that fails to reach the disk is there all the same.
      this.#made.push({ path, before, after: content.bytes });
      await this.#disk.commit(staged, path);
    } catch (error) {
      await this.#disk.discard(staged);
      throw error;
    }
  }

  async remove(path: string): Promise<void> {
    this.#made.push({ path, before: await this.#disk.look(path), after: undefined });
    await this.#disk.remove(path);
  }

  /**
   * Puts back what was there before, the last change first. What somebody else changed meanwhile stays theirs.
   * @returns what could not be put back, with the reason
   */
  async undo(): Promise<readonly string[]> {
    const left: string[] = [];
    for (const change of this.#made.splice(0).reverse()) {
      try {
        const reason = await this.#undoOne(change);
        if (reason !== undefined) left.push(`${change.path} ${reason}`);
      } catch (error) {
        left.push(messageOf(error));
      }
    }
    return left;
  }

  async #undoOne({ path, before, after }: Change): Promise<string | undefined> {
    const standing = await this.#disk.look(path);
    if (isSame(standing, before)) return undefined;
    const isAsLeft = after === undefined ? standing.kind === 'absent' : holds(standing, after);
    if (!isAsLeft) return 'was changed by somebody else meanwhile, and stays as it is';
    switch (before.kind) {
      case 'absent':
        await this.#disk.remove(path);
        return undefined;
      case 'link':
        await this.#disk.link(path, before.target);
        return undefined;
      case 'file':
        await this.#disk.commit(await this.#disk.stage(path, before), path);
        return undefined;
      case 'other':
        return 'cannot be put back';
    }
  }
}

/** Whether a path is a file with these bytes. */
export function holds(standing: Standing, bytes: Buffer): boolean {
  return standing.kind === 'file' && standing.bytes.equals(bytes);
}

function isSame(one: Standing, other: Standing): boolean {
  switch (one.kind) {
    case 'file':
      return other.kind === 'file' && one.bytes.equals(other.bytes) && one.mode === other.mode;
    case 'link':
      return other.kind === 'link' && one.target === other.target;
    case 'absent':
    case 'other':
      return one.kind === other.kind;
  }
}
