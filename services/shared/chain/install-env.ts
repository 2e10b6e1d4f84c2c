import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseEnv } from 'node:util';

import { Failure } from '../failure/failure.js';
import { codeOf, messageOf } from '../failure/thrown.js';

type Environment = Readonly<Record<string, string | undefined>>;

/** Settings of `podwire install` under systemd. Further programs that are run by hand must see the same installation. */
const INSTALL_ENV_FILE = '/etc/podwire/install.env';

/**
 * The environment, with the settings of the installation that it lacks.
 * @param root - where the file system of the node is seen
 * @throws Failure INVALID_SETTINGS for a file that cannot be read
 */
export async function withInstallEnv(env: Environment, root = '/'): Promise<Environment> {
  const text = await readFile(join(root, INSTALL_ENV_FILE), 'utf8').catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return '';
    throw new Failure('INVALID_SETTINGS', `${INSTALL_ENV_FILE}: cannot be read: ${messageOf(error)}; run as root`);
  });
  return { ...parseEnv(text), ...env };
}
