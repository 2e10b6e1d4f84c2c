import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import type { NativeBinding } from './native.js';

/** The package's folder, from lib/ as well as from dist/lib/. */
function packageFolder(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'binding.gyp')) && dirname(folder) !== folder) folder = dirname(folder);
  return folder;
}

function isLoader(loaded: unknown): loaded is (folder: string) => unknown {
  return typeof loaded === 'function';
}

/** Functions of the current addon; one of an earlier build may lack the later ones. */
const EXPORTS = [
  'clockSynchronized',
  'openNamespace',
  'lockFile',
  'makeNamespace',
  'peerCredentials',
] as const satisfies readonly (keyof NativeBinding)[];

function isBinding(loaded: unknown): loaded is NativeBinding {
  return typeof loaded === 'object' && loaded !== null && EXPORTS.every((name) => name in loaded);
}

/** The addon could not be loaded; the message names cause and remedy. */
class AddonLoadError extends Error {
  override readonly name = 'AddonLoadError';

  constructor(folder: string, cause: unknown) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    const remedy =
      process.platform === 'linux'
        ? 'build it with `npm run build -w @podwire/netlink` (needs a C++17 compiler, make and python3)'
        : `netlink exists on Linux only, and this is ${process.platform}`;
    super(`cannot load the netlink addon of ${folder}: ${reason}: ${remedy}`, { cause });
  }
}

/** Loads the addon from prebuilds/ or build/; throws {@link AddonLoadError}. */
export function loadBinding(): NativeBinding {
  const folder = packageFolder();
  try {
    const load: unknown = createRequire(import.meta.url)('node-gyp-build');
    const loaded: unknown = isLoader(load) ? load(folder) : undefined;
    if (isBinding(loaded)) return loaded;
  } catch (error) {
    throw new AddonLoadError(folder, error);
  }
  throw new AddonLoadError(folder, `it does not export ${EXPORTS.join(' and ')}, so it is of another version`);
}
