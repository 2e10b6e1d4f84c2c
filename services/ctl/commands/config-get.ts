import { ConfigServiceService, type Config } from '@podwire/proto/podwire/ipam/v1/config';

import type { Verb } from '../command-line/verb.js';
import type { Fields } from '../output/report.js';

export const configGet: Verb = {
  name: 'config get',
  about: 'the settings that apply to all allocations of the cluster',
  run: async (_, { ipam, json }) => {
    const answer = await ipam.call(ConfigServiceService.getConfig, {});
    return {
      sections: answer.config ? [configFields(answer.config)] : [],
      data: () => json.of(ConfigServiceService.getConfig, answer),
    };
  },
};

export function configFields(config: Config): Fields {
  const { strictAffinity, autoAllocateBlocks, maxBlocksPerNode, cooldownSeconds, resourceVersion, stored } = config;
  return {
    kind: 'fields',
    fields: [
      ['strict-affinity', String(strictAffinity)],
      ['auto-allocate-blocks', String(autoAllocateBlocks)],
      ['max-blocks-per-node', maxBlocksPerNode === 0 ? '0 (any number)' : String(maxBlocksPerNode)],
      ['cooldown', `${cooldownSeconds}s`],
      ['Version', stored ? resourceVersion : 'not stored: these are the defaults'],
    ],
  };
}
