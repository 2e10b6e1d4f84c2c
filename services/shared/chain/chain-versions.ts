import { join } from 'node:path';

import { LOOPBACK, programsOf, type Chain, type ChainVersions } from './chain.js';
import type { ProgramVersions } from './program-versions.js';

/**
 * Reads the versions of each program of a chain, and of the runtime's loopback program.
 * @param directory - the runtime's directory of programs
 * @param readVersions - runs VERSION of the program at a path
 */
export async function readChainVersions(
  chain: Pick<Chain, 'plugins'>,
  directory: string,
  readVersions: (path: string) => Promise<ProgramVersions>,
): Promise<ChainVersions> {
  const names = [...new Set([...programsOf(chain), LOOPBACK])];
  return new Map(
    await Promise.all(names.map(async (name) => [name, await readVersions(join(directory, name))] as const)),
  );
}
