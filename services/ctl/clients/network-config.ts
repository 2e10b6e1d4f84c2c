import { readFile } from 'node:fs/promises';

import type { Chain } from '@podwire/shared/chain/chain';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

/** The version that has STATUS, whichever the configuration begins with. */
const CNI_VERSION = '1.1.0';

const NETWORK = z.looseObject({
  name: z.string(),
  cniVersion: z.string().optional(),
  cniVersions: z.array(z.string()).optional(),
  plugins: z.array(z.looseObject({ type: z.string() })).optional(),
});

/** A network configuration on the node. */
export interface NetworkConfiguration {
  /** Podwire's member as the runtime hands it over, JSON: with the network's name, and in the version that has STATUS. */
  readonly member: string;
  /** Versions and members of the list; undefined for one plugin's configuration, which is no list. */
  readonly chain: Chain | undefined;
}

/** Podwire's member of a configuration that asks for nothing: one IPv4 address, of any pool. */
export const PLAIN_MEMBER = JSON.stringify({ cniVersion: CNI_VERSION, name: 'k8s-pod-network', type: 'podwire' });

/**
 * Reads the network configuration that the runtime has.
 * @param file - path of a conflist, or of one plugin's configuration
 * @returns undefined where there is no such file
 * @throws Failure INVALID_REQUEST
 */
export async function readNetworkConfiguration(file: string): Promise<NetworkConfiguration | undefined> {
  const content = await contentOf(file);
  if (content === undefined) return undefined;
  const network = NETWORK.safeParse(parseJson(content));
  if (!network.success)
    throw new Failure('INVALID_REQUEST', `${file} is no network configuration: it has no name, or is not JSON`);
  const { plugins, ...alone } = network.data;
  const member = plugins ? (plugins.find(({ type }) => type === 'podwire') ?? plugins[0]) : alone;
  if (!member) throw new Failure('INVALID_REQUEST', `the network configuration ${file} has no plugin`);
  const { name, cniVersion, cniVersions } = alone;
  return {
    member: JSON.stringify(Object.assign({}, member, { name, cniVersion: CNI_VERSION })),
    chain: plugins && { cniVersion, cniVersions, plugins },
  };
}

async function contentOf(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8');
  } catch (cause) {
    if (codeOf(cause) === 'ENOENT') return undefined;
    throw new Failure('INVALID_REQUEST', `cannot read the network configuration: ${messageOf(cause)}`, { cause });
  }
}
