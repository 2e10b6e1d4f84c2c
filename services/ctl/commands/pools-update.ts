import { Failure } from '@podwire/shared/failure/failure';
import { Pool, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';

import type { Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { POOL_NAME, POOL_OPTIONS, readPoolOptions, RESOURCE_VERSION } from './pool-options.js';
import { poolFields } from './pools-show.js';

export const poolsUpdate: Verb = {
  name: 'pools update',
  about: 'change a pool; settings not given stay as they are, and so do addresses in use',
  positionals: [POOL_NAME],
  options: [...POOL_OPTIONS, RESOURCE_VERSION],
  examples: ['pools update default-ipv4-ippool --disabled true', 'pools update second --node-selector "zone == \'a\'"'],
  run: async (input, { ipam, json, clock }) => {
    const name = input.at(POOL_NAME);
    const { fields, mask } = readPoolOptions(input);
    if (mask.length === 0)
      throw new Failure('INVALID_REQUEST', `nothing to change of pool ${name} is named; see "pools update --help"`);
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const pool = Pool.fromPartial({ ...fields, name, resourceVersion });
    const answer = await ipam.call(PoolServiceService.updatePool, { pool, updateMask: mask });
    return {
      sections: [
        sentence(`pool ${name} is changed:`),
        ...(answer.pool ? [poolFields(answer.pool, clock.nowMs())] : []),
      ],
      data: () => json.of(PoolServiceService.updatePool, answer),
    };
  },
};
