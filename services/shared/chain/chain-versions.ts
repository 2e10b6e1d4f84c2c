import { join } from 'node:path';

import { LOOPBACK, programsOf, type Chain, type ChainVersions } from './chain.js';
import type { ProgramVersions } from './program-versions.js';

/**
 * Asks each program of a chain, and the runtime's loopback program, for its versions.
 * @param directory - where the runtime looks for programs
 * @param ask - runs VERSION of the program at a path
 */
export async function readChainVersions(
  chain: Pick<Chain, 'plugins'>,
  directory: string,
  ask: (path: string) => Promise<ProgramVersions>,
): Promise<ChainVersions> {
  const names = [...new Set([...programsOf(chain), LOOPBACK])];
  return new Map(await Promise.all(names.map(async (name) => [name, await ask(join(directory, name))] as const)));
}
