import { readFile } from 'node:fs/promises';

import type { Chain } from '@podwire/shared/chain/chain';
import { withInstallEnv } from '@podwire/shared/chain/install-env';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

/** The version that has STATUS. It replaces the version of the configuration. */
const CNI_VERSION = '1.1.0';

const NETWORK = z.looseObject({
  name: z.string(),
  cniVersion: z.string().optional(),
  cniVersions: z.array(z.string()).optional(),
  plugins: z.array(z.looseObject({ type: z.string() })).optional(),
});

/** A network configuration on the node. */
export interface NetworkConfiguration {
  /** JSON of Podwire's member as the runtime passes it: with the network's name, and in the version that has STATUS. */
  readonly member: string;
  /** Versions and members of the list; undefined for the configuration of a single plugin, which is not a list. */
  readonly chain: Chain | undefined;
}

/** Podwire's member of a configuration without options: one IPv4 address from any pool. */
export const PLAIN_MEMBER = JSON.stringify({ cniVersion: CNI_VERSION, name: 'k8s-pod-network', type: 'podwire' });

/**
 * Reads the runtime's network configuration.
 * @param file - path of a conflist, or of one plugin's configuration
 * @returns undefined where the file does not exist
 * @throws Failure INVALID_REQUEST
 */
export async function readNetworkConfiguration(file: string): Promise<NetworkConfiguration | undefined> {
  const content = await contentOf(file);
  if (content === undefined) return undefined;
  const network = NETWORK.safeParse(parseJson(content));
  if (!network.success)
    throw new Failure('INVALID_REQUEST', `${file}: not a network configuration; it must be JSON and have a name`);
  const { plugins, ...rest } = network.data;
  const member = plugins ? (plugins.find(({ type }) => type === 'podwire') ?? plugins[0]) : rest;
  if (!member)
    throw new Failure('INVALID_REQUEST', `network configuration ${file}: has no plugin; add one to "plugins"`);
  const { name, cniVersion, cniVersions } = rest;
  return {
    member: JSON.stringify(Object.assign({}, member, { name, cniVersion: CNI_VERSION })),
    chain: plugins && { cniVersion, cniVersions, plugins },
  };
}

/**
 * The installation's directories: from the settings of `podwire install`, else the defaults.
 * @param root - where the file system of the node is seen
 */
export async function readInstallation(env: Readonly<Record<string, string | undefined>>, root = '/') {
  const settings = await withInstallEnv(env, root);
  return {
    binDirectory: settings.CNI_BIN_DIR ?? '/opt/cni/bin',
    configDirectory: settings.CNI_NET_DIR ?? '/etc/cni/net.d',
    configName: settings.CNI_CONF_NAME ?? '10-podwire.conflist',
  };
}

async function contentOf(file: string): Promise<string | undefined> {
  try {
    return await readFile(file, 'utf8');
  } catch (cause) {
    if (codeOf(cause) === 'ENOENT') return undefined;
    throw new Failure('INVALID_REQUEST', `${file}: cannot be read: ${messageOf(cause)}`, { cause });
  }
}
