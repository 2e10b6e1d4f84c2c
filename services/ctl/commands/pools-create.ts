import { Pool, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';

import { text } from '../command-line/forms.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { BLOCK_SIZE, POOL_NAME, POOL_OPTIONS, readPoolOptions } from './pool-options.js';
import { poolFields } from './pools-show.js';

const CIDR: Positional<string> = {
  form: text('CIDR'),
  about: 'its range, which cannot be changed later: 10.65.0.0/16, fd65::/48',
  presence: 'required',
};

export const poolsCreate: Verb = {
  name: 'pools create',
  about: 'create a pool',
  positionals: [POOL_NAME, CIDR],
  options: [BLOCK_SIZE, ...POOL_OPTIONS],
  examples: ['pools create second 10.66.0.0/16 --vxlan cross-subnet --nat-outgoing true'],
  run: async (input, { ipam, json, clock }) => {
    const name = input.at(POOL_NAME);
    const blockSize = input.get(BLOCK_SIZE) ?? 0;
    const { fields } = readPoolOptions(input);
    const pool = Pool.fromPartial({ ...fields, name, cidr: input.at(CIDR), blockSize });
    const answer = await ipam.call(PoolServiceService.createPool, { pool });
    return {
      sections: [sentence(`pool ${name} is made`), ...(answer.pool ? [poolFields(answer.pool, clock.nowMs())] : [])],
      data: () => json.of(PoolServiceService.createPool, answer),
    };
  },
};
