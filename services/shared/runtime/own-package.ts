import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

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
    const found: unknown = text === undefined ? undefined : JSON.parse(text);
    if (isManifest(found) && found.name === name) return { folder, version: found.version };
  }
  throw new Error(`package.json of ${name} not found above ${moduleUrl}; reinstall Podwire`);
}

function isManifest(value: unknown): value is { readonly name: string; readonly version: string } {
  const isObject = typeof value === 'object' && value !== null && 'name' in value && 'version' in value;
  return isObject && typeof value.name === 'string' && typeof value.version === 'string';
}
