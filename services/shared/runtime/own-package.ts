import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

import { z } from 'zod';

const manifest = z.object({ name: z.string(), version: z.string() });

/** Largest depth of a module below its package's folder. Built files are one level deeper than sources. */
const MAX_DEPTH = 5;

/** The npm package of a program. */
export interface OwnPackage {
  /** Folder with a trailing slash. */
  readonly folder: string;
  readonly version: string;
}

/**
 * Finds the package that a module belongs to: the nearest folder above it that has a package.json of that name.
 * @param moduleUrl - the module's own `import.meta.url`
 * @throws Error when there is none, which means a broken installation
 */
export async function readOwnPackage(moduleUrl: string, name: string): Promise<OwnPackage> {
  for (let depth = 0; depth <= MAX_DEPTH; depth++) {
    const folder = fileURLToPath(new URL(`./${'../'.repeat(depth)}`, moduleUrl));
    const text = await readFile(`${folder}package.json`, 'utf8').catch(() => undefined);
    const found = text === undefined ? undefined : manifest.parse(JSON.parse(text));
    if (found?.name === name) return { folder, version: found.version };
  }
  throw new Error(`package.json of ${name} not found above ${moduleUrl}; reinstall Podwire`);
}
