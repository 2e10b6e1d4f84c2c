import { EncapsulationMode, PoolServiceService, PoolState, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';

import { allPages } from '../clients/pages.js';
import type { Verb } from '../command-line/verb.js';
import type { Service } from '../context.js';
import { count, percent, wordOf } from '../output/words.js';

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
          columns: [
            'NAME',
            'CIDR',
            { right: 'BLOCKS OF' },
            'ENCAPSULATION',
            'NAT',
            { right: 'IN USE' },
            { right: 'FREE' },
            { right: 'USED' },
            'STATE',
          ],
          rows: pools.map(poolRow),
          none: 'There is no pool: no pod gets an address.',
        },
      ],
      hints: [
        ...(pools.length === 0 ? ['make one: podwirectl pools create NAME CIDR'] : []),
        ...pools.filter(isNearlyFull).map(({ name }) => `${name} is nearly full: make another pool before it is`),
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
  const { allocated = 0n, free = '', capacity = '0' } = utilization ?? {};
  const used = percent(allocated, capacity);
  const nat = natOutgoing ? 'yes' : 'no';
  return [name, cidr, `/${blockSize}`, encapsulationOf(pool), nat, String(allocated), count(free), used, stateOf(pool)];
}

function isNearlyFull({ utilization, state }: Pool): boolean {
  const { allocated = 0n, capacity = '0' } = utilization ?? {};
  return state === PoolState.POOL_STATE_ACTIVE && Number(allocated) >= NEARLY_FULL * Number(capacity);
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
