import { AddressUse, AssignmentMode, PoolServiceService, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { counted } from '@podwire/shared/words/counted';

import type { Verb } from '../command-line/verb.js';
import type { Fields } from '../output/report.js';
import { count, moment, momentAndAge, percent, wordOf } from '../output/words.js';
import { inUseOf } from '../resources/address-counts.js';
import { countsOf, encapsulationOf, stateOf } from '../resources/pools.js';
import { POOL_NAME } from './pool-options.js';

export const poolsShow: Verb = {
  name: 'pools show',
  about: 'everything about one pool',
  positionals: [POOL_NAME],
  run: async (input, { ipam, json, clock }) => {
    const answer = await ipam.call(PoolServiceService.getPool, { name: input.at(POOL_NAME) });
    return {
      sections: answer.pool ? [poolFields(answer.pool, clock.nowMs())] : [],
      data: () => json.of(PoolServiceService.getPool, answer),
    };
  },
};

export function poolFields(pool: Pool, nowMs: number): Fields {
  const counts = countsOf(pool.utilization);
  const inUse = inUseOf(counts);
  const uses = pool.allowedUses.map((use) => wordOf(AddressUse[use], 'ADDRESS_USE_'));
  const state = stateOf(pool);
  return {
    kind: 'fields',
    fields: [
      ['Name', pool.name],
      ['CIDR', pool.cidr],
      ['Blocks of', `/${pool.blockSize}`],
      ['State', ['', state].includes(pool.stateReason) ? state : `${state}: ${pool.stateReason}`],
      ['Deleted since', momentAndAge(pool.deleteTime, nowMs)],
      ['Addresses', count(counts.capacity)],
      ['In use', `${inUse} (${percent(inUse, counts.capacity)}), in ${counted(counts.blocks, 'block')}`],
      ['Cooling', String(counts.cooling)],
      ['Reserved', count(counts.reserved)],
      ['Available', count(counts.available)],
      ['Encapsulation', encapsulationOf(pool)],
      ['NAT outgoing', pool.natOutgoing ? 'yes' : 'no'],
      ['BGP export', pool.disableBgpExport ? 'no' : 'yes'],
      ['Nodes', pool.nodeSelector || 'all()'],
      ['Namespaces', pool.namespaceSelector || 'all'],
      ['For', uses.join(', ') || 'workload, tunnel'],
      ['Assignment', wordOf(AssignmentMode[pool.assignmentMode], 'ASSIGNMENT_MODE_') || 'automatic'],
      ['Made', moment(pool.createTime)],
      ['Version', pool.resourceVersion],
    ],
  };
}
