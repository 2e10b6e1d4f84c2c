import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));

/** The repository's root. This file runs as a source (test/support) and built (test/dist/support). */
export const ROOT = join(here, ...(here.includes(join('test', 'dist')) ? ['..', '..', '..'] : ['..', '..']));

/** The CNI binary that a container runtime execs. */
export const SHIM = join(ROOT, 'plugin', 'shim', 'build', 'podwire');

/** The health probe: the shim under another name. */
export const PROBE = join(ROOT, 'plugin', 'shim', 'build', 'podwire-probe');
