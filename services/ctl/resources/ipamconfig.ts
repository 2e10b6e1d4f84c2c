import { ConfigServiceService, type Config } from '@podwire/proto/podwire/ipam/v1/config';
import { Failure } from '@podwire/shared/failure/failure';
import type { z } from 'zod';

import type { Context } from '../clients/services.js';
import type { Fields } from '../output/report.js';
import { resource, type Wanted } from './resource.js';
import type { IPAM_CONFIG_SPEC } from './specs.js';

/** There is one configuration. */
const NAME = 'default';

export const readConfig = async ({ ipam }: Context): Promise<Config | undefined> =>
  (await ipam.call(ConfigServiceService.getConfig, {})).config;

export function configFields(config: Config): Fields {
  const { strictAffinity, autoAllocateBlocks, maxBlocksPerNode, cooldownSeconds, resourceVersion, stored } = config;
  return {
    kind: 'fields',
    fields: [
      ['strictAffinity', String(strictAffinity)],
      ['autoAllocateBlocks', String(autoAllocateBlocks)],
      ['maxBlocksPerHost', maxBlocksPerNode === 0 ? '0 (no limit)' : String(maxBlocksPerNode)],
      ['ipCooldownSeconds', String(cooldownSeconds)],
      ['Version', stored ? resourceVersion : 'none: the settings are the defaults'],
    ],
  };
}

async function store(
  { name, resourceVersion = '', spec }: Wanted<z.infer<typeof IPAM_CONFIG_SPEC>>,
  { ipam }: Context,
): Promise<Config | undefined> {
  requireDefault(name);
  const { strictAffinity, autoAllocateBlocks, maxBlocksPerHost, ipCooldownSeconds } = spec;
  const changes = { strictAffinity, autoAllocateBlocks, maxBlocksPerNode: maxBlocksPerHost };
  const request = { ...changes, cooldownSeconds: ipCooldownSeconds, resourceVersion };
  return (await ipam.call(ConfigServiceService.updateConfig, request)).config;
}

function requireDefault(name: string): void {
  if (name !== NAME) throw new Failure('INVALID_REQUEST', `IPAMConfiguration "${name}": its name must be "${NAME}"`);
}

export const IPAM_CONFIG = resource<Config, z.infer<typeof IPAM_CONFIG_SPEC>>({
  columns: [
    { head: 'NAME', cell: () => NAME },
    { head: 'STRICTAFFINITY', cell: ({ strictAffinity }) => String(strictAffinity) },
    { head: 'AUTOALLOCATEBLOCKS', cell: ({ autoAllocateBlocks }) => String(autoAllocateBlocks) },
    { head: 'MAXBLOCKSPERHOST', isNumber: true, cell: ({ maxBlocksPerNode }) => String(maxBlocksPerNode) },
    { head: 'COOLDOWN', isNumber: true, cell: ({ cooldownSeconds }) => `${cooldownSeconds}s` },
  ],
  none: 'ipamconfig: none',
  nameOf: () => NAME,
  metadata: ({ stored, resourceVersion }) => (stored ? { resourceVersion } : {}),
  spec: ({ strictAffinity, autoAllocateBlocks, maxBlocksPerNode, cooldownSeconds }) => ({
    strictAffinity,
    autoAllocateBlocks,
    maxBlocksPerHost: maxBlocksPerNode,
    ipCooldownSeconds: cooldownSeconds,
  }),
  details: (config) => [configFields(config)],
  data: (config, { json }) => json.of(ConfigServiceService.getConfig, { config }),
  list: async (_, context) => [await readConfig(context)].filter((config) => config !== undefined),
  get: (name, context) => {
    requireDefault(name);
    return readConfig(context);
  },
  schema: async () => (await import('./specs.js')).IPAM_CONFIG_SPEC,
  create: store,
  update: store,
  instead: 'set other values with "podwirectl ipam configure"',
});
