import { PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';

import { wholeNumber } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { POOL_NAME, RESOURCE_VERSION } from './pool-options.js';
import { poolFields } from './pools-show.js';

const NUMBER: Positional<number> = {
  form: wholeNumber('NUMBER', { min: 2, max: 64 }),
  about: 'into how many pools: a power of two',
  presence: 'required',
};

export const poolsSplit: Verb = {
  name: 'pools split',
  about: 'replace a pool with several of equal size; addresses and blocks stay as they are',
  positionals: [POOL_NAME, NUMBER],
  options: [RESOURCE_VERSION],
  flags: [YES],
  run: async (input, { ipam, json, clock }) => {
    const [name, number] = [input.at(POOL_NAME), input.at(NUMBER)];
    if (!input.has(YES)) {
      const found = await ipam.call(PoolServiceService.getPool, { name });
      const sections = [
        sentence(`This pool would become ${number} pools, and who asks for it by name would be refused:`),
        ...(found.pool ? [poolFields(found.pool, clock.nowMs())] : []),
      ];
      const preview = { sections, data: () => json.of(PoolServiceService.getPool, found) };
      return unconfirmed(preview, input.typed());
    }
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const answer = await ipam.call(PoolServiceService.splitPool, {
      pool: { $case: 'name', value: name },
      number,
      resourceVersion,
    });
    return {
      sections: [
        {
          kind: 'table',
          columns: ['NAME', 'CIDR'],
          rows: answer.pools.map((pool) => [pool.name, pool.cidr]),
          none: 'There is no part.',
        },
      ],
      data: () => json.of(PoolServiceService.splitPool, answer),
    };
  },
};
