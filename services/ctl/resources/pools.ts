import {
  AddressUse,
  AssignmentMode,
  EncapsulationMode,
  Pool,
  PoolServiceService,
  PoolState,
  PoolUtilization,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages, type Service } from '../clients/services.js';
import { oneOf, text, wholeNumber, YES_OR_NO } from '../command-line/forms.js';
import { RESOURCE_VERSION, previewReport, YES } from '../command-line/options.js';
import type { Input, Option, Positional, Verb } from '../command-line/verb.js';
import { sentence, type Fields } from '../output/report.js';
import { count, moment, momentAndAge, percent, wordOf } from '../output/words.js';
import { COUNT_COLUMNS, countCells, inUseOf } from './address-counts.js';

/** Utilisation from which a pool is reported as nearly full. */
const NEARLY_FULL = 0.9;

export const poolsList: Verb = {
  name: 'pools list',
  about: 'the pools, with settings and utilisation',
  run: async (_, { ipam, json }) => {
    const pools = await listPools(ipam);
    return {
      sections: [
        {
          kind: 'table',
          columns: ['NAME', 'CIDR', { right: 'BLOCK SIZE' }, 'ENCAPSULATION', 'NAT', ...COUNT_COLUMNS, 'STATE'],
          rows: pools.map(poolRow),
          none: 'pools: none; no pod gets an address',
        },
      ],
      hints: [
        ...(pools.length === 0 ? ['to create a pool: podwirectl pools create NAME CIDR'] : []),
        ...pools
          .filter(isNearlyFull)
          .map(({ name }) => `pool ${name} is nearly full; create another pool, or delete unneeded reservations`),
        ...pools
          .filter(({ state }) => state === PoolState.POOL_STATE_NOT_ALLOCATABLE)
          .map(({ name, stateReason }) => `pool ${name} allocates no addresses: ${stateReason}`),
      ],
      data: () => json.of(PoolServiceService.listPools, { pools, nextPageToken: '' }),
    };
  },
};

/** All pools, ordered by name. */
export async function listPools(ipam: Service): Promise<Pool[]> {
  const pages = await allPages((page) => ipam.call(PoolServiceService.listPools, page));
  return pages.flatMap(({ pools }) => pools);
}

function poolRow(pool: Pool): string[] {
  const { name, cidr, blockSize, natOutgoing, utilization } = pool;
  const counts = countCells(countsOf(utilization));
  return [name, cidr, `/${blockSize}`, encapsulationOf(pool), natOutgoing ? 'yes' : 'no', ...counts, stateOf(pool)];
}

/** Counts of a pool; zero where the service has not counted its blocks. */
export function countsOf(utilization: PoolUtilization | undefined): PoolUtilization {
  return utilization ?? PoolUtilization.fromPartial({ capacity: '0' });
}

/** Reserved addresses are not available to pods, so the capacity excludes them. */
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

export const POOL_NAME: Positional<string> = { form: text('NAME'), about: 'name of the pool', presence: 'required' };

const ENCAPSULATION = oneOf({
  never: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
  always: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS,
  'cross-subnet': EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
});

const BLOCK_SIZE: Option<number> = {
  name: '--block-size',
  form: wholeNumber('BITS', { min: 20, max: 128 }),
  about:
    'prefix length of its blocks, which cannot be changed later: 20 to 32 (26) for IPv4, 116 to 128 (122) for IPv6',
};

const DISABLED: Option<boolean> = {
  name: '--disabled',
  form: YES_OR_NO,
  about: 'allocate no addresses; those in use stay valid (false)',
};
const IPIP: Option<EncapsulationMode> = {
  name: '--ipip',
  form: ENCAPSULATION,
  about: 'when to encapsulate packets to other nodes with IPIP (never)',
};
const VXLAN: Option<EncapsulationMode> = {
  name: '--vxlan',
  form: ENCAPSULATION,
  about: 'when to encapsulate packets to other nodes with VXLAN (never)',
};
const NAT: Option<boolean> = {
  name: '--nat-outgoing',
  form: YES_OR_NO,
  about: 'whether packets to addresses outside the pools get the node’s source address (false)',
};
const NO_EXPORT: Option<boolean> = {
  name: '--disable-bgp-export',
  form: YES_OR_NO,
  about: 'whether the pool is not announced to BGP peers (false)',
};
const NODE_SELECTOR: Option<string> = {
  name: '--node-selector',
  form: text('SELECTOR'),
  about: "the nodes that the pool serves, in Calico's selector language (all())",
};
const NAMESPACE_SELECTOR: Option<string> = {
  name: '--namespace-selector',
  form: text('SELECTOR'),
  about: 'the namespaces that the pool serves (all)',
};
const USE: Option<AddressUse> = {
  name: '--use',
  form: oneOf({
    workload: AddressUse.ADDRESS_USE_WORKLOAD,
    tunnel: AddressUse.ADDRESS_USE_TUNNEL,
    'load-balancer': AddressUse.ADDRESS_USE_LOAD_BALANCER,
  }),
  about: 'use of its addresses (workload and tunnel)',
  repeated: true,
};
const ASSIGNMENT: Option<AssignmentMode> = {
  name: '--assignment',
  form: oneOf({
    automatic: AssignmentMode.ASSIGNMENT_MODE_AUTOMATIC,
    manual: AssignmentMode.ASSIGNMENT_MODE_MANUAL,
  }),
  about: 'manual: the pool serves only requests that name it (automatic)',
};

/** Options to create and to update a pool. */
const POOL_OPTIONS: readonly Option<unknown>[] = [
  DISABLED,
  IPIP,
  VXLAN,
  NAT,
  NO_EXPORT,
  NODE_SELECTOR,
  NAMESPACE_SELECTOR,
  USE,
  ASSIGNMENT,
];

interface PoolChange {
  readonly fields: Partial<Pool>;
  /** Names of the fields in the contract. */
  readonly mask: string[];
}

/** The fields that the options set. */
function readPoolOptions(input: Input): PoolChange {
  const fields: Partial<Pool> = {};
  const mask: string[] = [];
  const take = <Value>(option: Option<Value>, name: string, put: (value: Value) => void): void => {
    const value = input.get(option);
    if (value === undefined) return;
    put(value);
    mask.push(name);
  };
  take(DISABLED, 'disabled', (value) => (fields.disabled = value));
  take(IPIP, 'ipip_mode', (value) => (fields.ipipMode = value));
  take(VXLAN, 'vxlan_mode', (value) => (fields.vxlanMode = value));
  take(NAT, 'nat_outgoing', (value) => (fields.natOutgoing = value));
  take(NO_EXPORT, 'disable_bgp_export', (value) => (fields.disableBgpExport = value));
  take(NODE_SELECTOR, 'node_selector', (value) => (fields.nodeSelector = value));
  take(NAMESPACE_SELECTOR, 'namespace_selector', (value) => (fields.namespaceSelector = value));
  take(USE, 'allowed_uses', () => (fields.allowedUses = input.all(USE)));
  take(ASSIGNMENT, 'assignment_mode', (value) => (fields.assignmentMode = value));
  return { fields, mask };
}

const CIDR: Positional<string> = {
  form: text('CIDR'),
  about: 'range of the pool, which cannot be changed later: 10.65.0.0/16, fd65::/48',
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
      sections: [sentence(`pool ${name} is created`), ...(answer.pool ? [poolFields(answer.pool, clock.nowMs())] : [])],
      data: () => json.of(PoolServiceService.createPool, answer),
    };
  },
};

export const poolsShow: Verb = {
  name: 'pools show',
  about: 'details of one pool',
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
      ['Block size', `/${pool.blockSize}`],
      ['State', ['', state].includes(pool.stateReason) ? state : `${state}: ${pool.stateReason}`],
      ['Deleted since', momentAndAge(pool.deleteTime, nowMs)],
      ['Addresses', count(counts.capacity)],
      ['In use', `${inUse} (${percent(inUse, counts.capacity)}), in ${formatCount(counts.blocks, 'block')}`],
      ['Cooling', String(counts.cooling)],
      ['Reserved', count(counts.reserved)],
      ['Available', count(counts.available)],
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

const NUMBER: Positional<number> = {
  form: wholeNumber('NUMBER', { min: 2, max: 64 }),
  about: 'number of new pools: a power of two',
  presence: 'required',
};

export const poolsSplit: Verb = {
  name: 'pools split',
  about: 'replace a pool with several of equal size; addresses and blocks are kept',
  positionals: [POOL_NAME, NUMBER],
  options: [RESOURCE_VERSION],
  flags: [YES],
  run: async (input, { ipam, json, clock }) => {
    const [name, number] = [input.at(POOL_NAME), input.at(NUMBER)];
    if (!input.has(YES)) {
      const found = await ipam.call(PoolServiceService.getPool, { name });
      const sections = [
        sentence(`This pool would be replaced with ${number} pools. Requests that name it would be refused:`),
        ...(found.pool ? [poolFields(found.pool, clock.nowMs())] : []),
      ];
      const preview = { sections, data: () => json.of(PoolServiceService.getPool, found) };
      return previewReport(preview, input.toCommandLine());
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
          none: 'pools: none',
        },
      ],
      data: () => json.of(PoolServiceService.splitPool, answer),
    };
  },
};

export const poolsUpdate: Verb = {
  name: 'pools update',
  about: 'change settings of a pool; others stay unchanged, and addresses in use stay valid',
  positionals: [POOL_NAME],
  options: [...POOL_OPTIONS, RESOURCE_VERSION],
  examples: ['pools update default-ipv4-ippool --disabled true', 'pools update second --node-selector "zone == \'a\'"'],
  run: async (input, { ipam, json, clock }) => {
    const name = input.at(POOL_NAME);
    const { fields, mask } = readPoolOptions(input);
    if (mask.length === 0)
      throw new Failure('INVALID_REQUEST', `pool ${name}: no setting to change; see "podwirectl pools update --help"`);
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const pool = Pool.fromPartial({ ...fields, name, resourceVersion });
    const answer = await ipam.call(PoolServiceService.updatePool, { pool, updateMask: mask });
    return {
      sections: [
        sentence(`pool ${name} is updated:`),
        ...(answer.pool ? [poolFields(answer.pool, clock.nowMs())] : []),
      ],
      data: () => json.of(PoolServiceService.updatePool, answer),
    };
  },
};
