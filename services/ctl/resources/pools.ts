import {
  EncapsulationMode,
  PoolServiceService,
  PoolState,
  PoolUtilization,
  type Pool,
} from '@podwire/proto/podwire/ipam/v1/pool';

import { allPages } from '../clients/pages.js';
import type { Service } from '../clients/services.js';
import type { Verb } from '../command-line/verb.js';
import { wordOf } from '../output/words.js';
import { COUNT_COLUMNS, countCells } from './address-counts.js';

/** From which part of its addresses on a pool is as good as full. */
const NEARLY_FULL = 0.9;

export const poolsList: Verb = {
  name: 'pools list',
  about: 'the pools, what they are for, and how full they are',
  run: async (_, { ipam, json }) => {
    const pools = await listPools(ipam);
    return {
      sections: [
        {
          kind: 'table',
          columns: ['NAME', 'CIDR', { right: 'BLOCKS OF' }, 'ENCAPSULATION', 'NAT', ...COUNT_COLUMNS, 'STATE'],
          rows: pools.map(poolRow),
          none: 'There is no pool: no pod gets an address.',
        },
      ],
      hints: [
        ...(pools.length === 0 ? ['make one: podwirectl pools create NAME CIDR'] : []),
        ...pools
          .filter(isNearlyFull)
          .map(({ name }) => `${name} is nearly full: create another pool, or remove reservations that are not needed`),
        ...pools
          .filter(({ state }) => state === PoolState.POOL_STATE_NOT_ALLOCATABLE)
          .map(({ name, stateReason }) => `${name} gives no address: ${stateReason}`),
      ],
      data: () => json.of(PoolServiceService.listPools, { pools, nextPageToken: '' }),
    };
  },
};

/** Every pool, in the order of the names. */
export async function listPools(ipam: Service): Promise<Pool[]> {
  const pages = await allPages((page) => ipam.call(PoolServiceService.listPools, page));
  return pages.flatMap(({ pools }) => pools);
}

function poolRow(pool: Pool): string[] {
  const { name, cidr, blockSize, natOutgoing, utilization } = pool;
  const counts = countCells(countsOf(utilization));
  return [name, cidr, `/${blockSize}`, encapsulationOf(pool), natOutgoing ? 'yes' : 'no', ...counts, stateOf(pool)];
}

/** Those of a pool; of one whose blocks the service has not counted, nothing. */
export function countsOf(utilization: PoolUtilization | undefined): PoolUtilization {
  return utilization ?? PoolUtilization.fromPartial({ capacity: '0' });
}

/** Reserved addresses are no room for pods, so they do not count. */
function isNearlyFull({ utilization, state }: Pool): boolean {
  const { allocated, capacity, reserved } = countsOf(utilization);
  const assignable = Number(capacity) - Number(reserved);
  return state === PoolState.POOL_STATE_ACTIVE && Number(allocated) >= NEARLY_FULL * assignable;
}

export function encapsulationOf({ ipipMode, vxlanMode }: Pool): string {
  const never = ['', 'never'];
  const of = (kind: string, mode: EncapsulationMode): string[] => {
    const word = wordOf(EncapsulationMode[mode], 'ENCAPSULATION_MODE_');
    return never.includes(word) ? [] : [`${kind} ${word}`];
  };
  return [...of('ipip', ipipMode), ...of('vxlan', vxlanMode)].join(', ') || 'none';
}

export function stateOf({ state }: Pool): string {
  return wordOf(PoolState[state], 'POOL_STATE_');
}
