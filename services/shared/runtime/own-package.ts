import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

import { z } from 'zod';

const manifest = z.object({ name: z.string(), version: z.string() });

/** How many folders a module may lie below its package's, built files one deeper than sources. */
const MAX_DEPTH = 5;

/** The npm package that a program is a part of. */
export interface OwnPackage {
  /** With a slash at its end. */
  readonly folder: string;
  readonly version: string;
}

/**
 * Finds the package that a module belongs to: the nearest folder above it that has a package.json of that name.
 * @param moduleUrl - the module's own `import.meta.url`
 * @throws Error when there is none, which only a broken installation can cause
 */
export async function readOwnPackage(moduleUrl: string, name: string): Promise<OwnPackage> {
  for (let depth = 0; depth <= MAX_DEPTH; depth++) {
    const folder = fileURLToPath(new URL(`./${'../'.repeat(depth)}`, moduleUrl));
    const text = await readFile(`${folder}package.json`, 'utf8').catch(() => undefined);
    const found = text === undefined ? undefined : manifest.parse(JSON.parse(text));
    if (found?.name === name) return { folder, version: found.version };
  }
  throw new Error(`there is no package.json of ${name} above ${moduleUrl}`);
}
