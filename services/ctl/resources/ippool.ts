import {
  AddressUse,
  AssignmentMode,
  EncapsulationMode,
  Pool,
  PoolDeletionMode,
  PoolServiceService,
  PoolState,
  PoolUtilization,
  type DeletePoolRequest,
  type DeletePoolResponse,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { ADDRESS_USES, ASSIGNMENT_MODES, ENCAPSULATION_MODES } from '@podwire/shared/requests/pool-words';
import { formatCount } from '@podwire/shared/words/format-count';
import type { z } from 'zod';

import { allPages, type Service } from '../clients/services.js';
import { DRAIN, FORCE, RELEASE_ADDRESSES } from '../command-line/options.js';
import type { Input } from '../command-line/verb.js';
import { sentence, type Fields, type Report } from '../output/report.js';
import { count, moment, momentAndAge, percent, wordOf } from '../output/words.js';
import { countColumns, inUseOf } from './address-counts.js';
import { keptReport } from './kept.js';
import { resource, type Wanted } from './resource.js';
import type { IP_POOL_SPEC } from './specs.js';

/** Utilisation from which a pool is reported as nearly full. */
const NEARLY_FULL = 0.9;

/** All pools, ordered by name. */
export async function listPools(ipam: Service): Promise<Pool[]> {
  const pages = await allPages((page) => ipam.call(PoolServiceService.listPools, page));
  return pages.flatMap(({ pools }) => pools);
}

/** Counts of a pool; zero where the service has not counted its blocks. */
export function countsOf(utilization: PoolUtilization | undefined): PoolUtilization {
  return utilization ?? PoolUtilization.fromPartial({ capacity: '0' });
}

/** Reserved addresses are not available to pods, so the capacity excludes them. */
export function isNearlyFull({ utilization, state }: Pool): boolean {
  const { allocated, capacity, reserved } = countsOf(utilization);
  const assignable = Number(capacity) - Number(reserved);
  return state === PoolState.POOL_STATE_ACTIVE && Number(allocated) >= NEARLY_FULL * assignable;
}

function encapsulationOf({ ipipMode, vxlanMode }: Pool): string {
  const never = ['', 'never'];
  const of = (kind: string, mode: EncapsulationMode): string[] => {
    const word = wordOf(EncapsulationMode[mode], 'ENCAPSULATION_MODE_');
    return never.includes(word) ? [] : [`${kind} ${word}`];
  };
  return [...of('ipip', ipipMode), ...of('vxlan', vxlanMode)].join(', ') || 'none';
}

function stateOf({ state }: Pool): string {
  return wordOf(PoolState[state], 'POOL_STATE_');
}

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
      ['Block size', `/${pool.blockSize}`],
      ['State', ['', state].includes(pool.stateReason) ? state : `${state}: ${pool.stateReason}`],
      ['Deleted since', momentAndAge(pool.deleteTime, nowMs)],
      ['Addresses', count(counts.capacity)],
      ['In use', `${inUse} (${percent(inUse, counts.capacity)}), in ${formatCount(counts.blocks, 'block')}`],
      ['Cooling', String(counts.cooling)],
      ['Reserved', count(counts.reserved)],
      ['Available', count(counts.available)],
      ['Leased', String(counts.leased)],
      ['Encapsulation', encapsulationOf(pool)],
      ['NAT outgoing', pool.natOutgoing ? 'yes' : 'no'],
      ['BGP export', pool.disableBgpExport ? 'no' : 'yes'],
      ['Nodes', pool.nodeSelector || 'all()'],
      ['Namespaces', pool.namespaceSelector || 'all'],
      ['Use', uses.join(', ') || 'workload, tunnel'],
      ['Assignment', wordOf(AssignmentMode[pool.assignmentMode], 'ASSIGNMENT_MODE_') || 'automatic'],
      ['Created', moment(pool.createTime)],
      ['Version', pool.resourceVersion],
    ],
  };
}

function poolOf({ name, resourceVersion = '', spec }: Wanted<z.infer<typeof IP_POOL_SPEC>>): Pool {
  const { disableBGPExport, vxlanMode, ipipMode, allowedUses, assignmentMode, ...same } = spec;
  return Pool.fromPartial({
    ...same,
    name,
    resourceVersion,
    disableBgpExport: disableBGPExport,
    vxlanMode: ENCAPSULATION_MODES.constants[vxlanMode],
    ipipMode: ENCAPSULATION_MODES.constants[ipipMode],
    allowedUses: allowedUses.map((use) => ADDRESS_USES.constants[use]),
    assignmentMode: ASSIGNMENT_MODES.constants[assignmentMode],
  });
}

interface PoolDeletion {
  readonly mode: PoolDeletionMode;
  readonly warning: string;
}

function deletionOf(input: Input): PoolDeletion {
  if (input.has(DRAIN) && input.has(RELEASE_ADDRESSES))
    throw new Failure('INVALID_REQUEST', '--drain: contradicts --release-addresses; remove one of them');
  if (input.has(FORCE) && !input.has(RELEASE_ADDRESSES))
    throw new Failure('INVALID_REQUEST', '--force: requires --release-addresses for a pool; add it');
  if (input.has(DRAIN))
    return {
      mode: PoolDeletionMode.POOL_DELETION_MODE_DRAIN,
      warning:
        'This pool would allocate no more addresses, and be deleted when its last one is released. This is irreversible:',
    };
  if (input.has(RELEASE_ADDRESSES))
    return {
      mode: PoolDeletionMode.POOL_DELETION_MODE_RELEASE_ADDRESSES,
      warning:
        'All addresses of this pool would be released, except addresses of pods on nodes that run, and the pool be deleted:',
    };
  return {
    mode: PoolDeletionMode.POOL_DELETION_MODE_REFUSE_IF_IN_USE,
    warning: 'This pool would be deleted if none of its addresses is in use:',
  };
}

function deletionRequest(name: string, resourceVersion: string, input: Input): DeletePoolRequest {
  const { mode } = deletionOf(input);
  return { name, resourceVersion, mode, force: input.has(FORCE) || undefined };
}

function deletionReport(name: string, answer: DeletePoolResponse): Omit<Report, 'data'> {
  const { state, heldAddresses, leasedAddresses, coolingAddresses, holders, unreadableRecord, releasedAddresses } =
    answer;
  const released =
    releasedAddresses > 0n ? `; released: ${formatCount(releasedAddresses, 'address', 'addresses')}` : '';
  if (state !== PoolState.POOL_STATE_DRAINING) return { sections: [sentence(`pool ${name} is deleted${released}`)] };
  const unreadable = `the pool is not deleted until the record ${unreadableRecord} is corrected or deleted in the datastore`;
  return {
    sections: [
      sentence(
        `pool ${name} is draining${released}: ${formatCount(heldAddresses, 'address', 'addresses')} in use, ${leasedAddresses} leased, ${coolingAddresses} cooling down; ` +
          'it allocates no addresses, and is deleted when the last one is released',
      ),
      {
        kind: 'table',
        columns: ['NODE', { right: 'ADDRESSES' }],
        rows: holders.map(({ nodeName, addresses }) => [nodeName, String(addresses)]),
        none: 'nodes with addresses: none',
      },
    ],
    hints: [
      `to list the owners: podwirectl get addresses --pool ${name}`,
      ...(unreadableRecord === '' ? [] : [unreadable]),
    ],
  };
}

export const IP_POOL = resource<Pool, z.infer<typeof IP_POOL_SPEC>>({
  columns: [
    { head: 'NAME', cell: ({ name }) => name },
    { head: 'CIDR', cell: ({ cidr }) => cidr },
    { head: 'BLOCK SIZE', isNumber: true, cell: ({ blockSize }) => `/${blockSize}` },
    { head: 'ENCAPSULATION', cell: encapsulationOf },
    { head: 'NAT', cell: ({ natOutgoing }) => (natOutgoing ? 'yes' : 'no') },
    ...countColumns(({ utilization }: Pool) => countsOf(utilization)),
    { head: 'STATE', cell: stateOf },
    { head: 'SELECTOR', isWide: true, cell: ({ nodeSelector }) => nodeSelector || 'all()' },
    { head: 'NAMESPACES', isWide: true, cell: ({ namespaceSelector }) => namespaceSelector || 'all' },
    {
      head: 'ASSIGNMENT',
      isWide: true,
      cell: ({ assignmentMode }) => wordOf(AssignmentMode[assignmentMode], 'ASSIGNMENT_MODE_') || 'automatic',
    },
  ],
  none: 'ippools: none; no pod gets an address',
  nameOf: ({ name }) => name,
  metadata: ({ createTime, resourceVersion }) => ({ creationTimestamp: moment(createTime), resourceVersion }),
  spec: (pool) => ({
    cidr: pool.cidr,
    blockSize: pool.blockSize,
    vxlanMode: ENCAPSULATION_MODES.wordOf(pool.vxlanMode) ?? 'Never',
    ipipMode: ENCAPSULATION_MODES.wordOf(pool.ipipMode) ?? 'Never',
    natOutgoing: pool.natOutgoing,
    disabled: pool.disabled,
    disableBGPExport: pool.disableBgpExport,
    nodeSelector: pool.nodeSelector || 'all()',
    ...(pool.namespaceSelector === '' ? {} : { namespaceSelector: pool.namespaceSelector }),
    ...(pool.allowedUses.length === 0
      ? {}
      : { allowedUses: pool.allowedUses.map((use) => ADDRESS_USES.wordOf(use) ?? '') }),
    assignmentMode: ASSIGNMENT_MODES.wordOf(pool.assignmentMode) ?? 'Automatic',
  }),
  details: (pool, nowMs) => [poolFields(pool, nowMs)],
  data: (pool, { json }) => json.of(PoolServiceService.getPool, { pool }),
  list: (_, { ipam }) => listPools(ipam),
  get: async (name, { ipam }) => (await ipam.call(PoolServiceService.getPool, { name })).pool,
  notFound: 'POOL_NOT_FOUND',
  hints: (pools) => [
    ...(pools.length === 0 ? ['to create a pool: podwirectl create ippool NAME cidr=CIDR'] : []),
    ...pools
      .filter(isNearlyFull)
      .map(({ name }) => `pool ${name} is nearly full; create another pool, or delete unneeded reservations`),
    ...pools
      .filter(({ state }) => state === PoolState.POOL_STATE_NOT_ALLOCATABLE)
      .map(({ name, stateReason }) => `pool ${name} allocates no addresses: ${stateReason}`),
  ],
  schema: async () => (await import('./specs.js')).IP_POOL_SPEC,
  create: async (wanted, { ipam }) => (await ipam.call(PoolServiceService.createPool, { pool: poolOf(wanted) })).pool,
  // An empty mask replaces all fields.
  update: async (wanted, { ipam }) =>
    (await ipam.call(PoolServiceService.updatePool, { pool: poolOf(wanted), updateMask: [] })).pool,
  deletion: {
    flags: [DRAIN, RELEASE_ADDRESSES, FORCE],
    warning: (input) => deletionOf(input).warning,
    run: async (name, resourceVersion, input, { ipam, json }) => {
      const request = deletionRequest(name, resourceVersion, input);
      const answer = await ipam.call(PoolServiceService.deletePool, request);
      const report = deletionReport(name, answer);
      const { sections, exitCode } = keptReport(answer);
      return {
        ...{ ...report, sections: [...report.sections, ...sections], exitCode },
        data: () => json.of(PoolServiceService.deletePool, answer),
      };
    },
  },
});
