import { readFile } from 'node:fs/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

/** The version that has STATUS, whichever the configuration begins with. */
const CNI_VERSION = '1.1.0';

const NETWORK = z.looseObject({
  name: z.string(),
  plugins: z.array(z.looseObject({ type: z.string() })).optional(),
});

/**
 * Podwire's member of a network configuration, as the runtime hands it over: with the network's name, and in the version that has STATUS.
 * @param file - path of a conflist, or of one plugin's configuration
 * @throws Failure INVALID_REQUEST
 */
export async function podwireMemberOf(file: string): Promise<string> {
  const network = NETWORK.safeParse(parseJson(await contentOf(file)));
  if (!network.success)
    throw new Failure('INVALID_REQUEST', `${file} is no network configuration: it has no name, or is not JSON`);
  const { plugins, ...alone } = network.data;
  const member = plugins ? (plugins.find(({ type }) => type === 'podwire') ?? plugins[0]) : alone;
  if (!member) throw new Failure('INVALID_REQUEST', `the network configuration ${file} has no plugin`);
  return JSON.stringify(Object.assign({}, member, { name: alone.name, cniVersion: CNI_VERSION }));
}

async function contentOf(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (cause) {
    const reason = messageOf(cause);
    throw new Failure(
      'INVALID_REQUEST',
      `cannot read the network configuration: ${reason}; without one a runtime adds no pod: see "podwire check-install", or name another with --config`,
      { cause },
    );
  }
}
