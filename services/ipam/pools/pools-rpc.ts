import {
  AddressUse,
  PoolDeletionMode,
  PoolServiceService,
  PoolState,
  type CreatePoolRequest,
  type DeletePoolRequest,
  type DeletePoolResponse,
  type Pool as PoolMessage,
  type SplitPoolRequest,
  type UpdatePoolRequest,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { violationsFailure, type Failure } from '@podwire/shared/failure/failure';
import { formatPrefix, parsePrefix, type PrefixFault } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import { ADDRESS_USES, ASSIGNMENT_MODES, ENCAPSULATION_MODES, USE_WORDS } from '@podwire/shared/requests/pool-words';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { keptMessage } from '../blocks/running-nodes-rpc.js';
import { readObjectName } from '../messages/parts.js';
import { subdomainFault } from '../records/names.js';
import { unavailableReason, poolVersion, type Pool } from '../records/pool.js';
import { MAX_PARTS, type PoolChange, type PoolReference, type PoolSplitRequest } from './changes.js';
import type { PoolDeleted, PoolDeletionRequest } from './deletion.js';
import type { Pools } from './pools-operations.js';
import type { PoolListing } from './pools.js';
import {
  checkPool,
  MUTABLE_FIELDS,
  type MutableFields,
  type PoolFault,
  type PoolRules,
  type PoolSpec,
} from './rules.js';

export function poolService(pools: Pools, unary: Unary): RpcService {
  return unaryService(PoolServiceService, unary, {
    createPool: async (message, { signal }) => {
      const spec = readCreatePoolRequest(message);
      return { pool: poolMessage(await pools.create(spec, signal)) };
    },
    getPool: async (message, { signal }) => {
      const name = readObjectName('GetPool', message.name);
      return { pool: poolMessage(await pools.get(name, signal)) };
    },
    listPools: async (message, { signal }) => {
      const query = readChecked('ListPools', (checks) => readPage(message, SCOPE, checks));
      const { items, more } = await pools.list(query, signal);
      return {
        pools: items.map(poolMessage),
        nextPageToken: formatPageToken(SCOPE, more ? items.at(-1)?.pool.name : undefined),
      };
    },
    updatePool: async (message, { signal }) => {
      const updated = await pools.update(readUpdatePoolRequest(message), signal);
      if (!updated.ok) throw poolFaultsFailure('UpdatePool', updated.faults);
      return { pool: poolMessage(updated.listing) };
    },
    deletePool: async (message, { signal }) =>
      deletePoolResponse(await pools.delete(readDeletePoolRequest(message), signal)),
    splitPool: async (message, { signal }) => {
      const split = await pools.split(readSplitPoolRequest(message), signal);
      if (!split.ok) throw violationsFailure('INVALID_REQUEST', 'SplitPool refused', split.faults);
      return { pools: split.parts.map(poolMessage) };
    },
  });
}

const SCOPE: ListScope = ['pools'];

/** The name of a field in a pool's message. */
function messageField(field: PoolFault['field']): string {
  if (field === 'blockSizeBits') return 'block_size';
  return field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Fields allowed in a mask: the mutable ones, and immutable ones, whose change is refused with a specific text. */
const MASKED: ReadonlySet<string> = new Set(['cidr', 'block_size', ...MUTABLE_FIELDS.map(messageField)]);

/** @param method - method name for the error text */
function poolFaultsFailure(method: string, faults: readonly PoolFault[]): Failure {
  const violations = faults.map(({ field, reason }) => ({ field: `pool.${messageField(field)}`, reason }));
  return violationsFailure('INVALID_REQUEST', `${method} refused`, violations);
}

function readCreatePoolRequest({ pool }: CreatePoolRequest): PoolSpec {
  if (!pool)
    throw violationsFailure('INVALID_REQUEST', 'CreatePool refused', [{ field: 'pool', reason: 'is missing' }]);
  const faults: PoolFault[] = [];
  const rules = readRules(pool, faults);
  const { name, cidr, blockSize: blockSizeBits, disabled } = pool;
  const result = checkPool({ ...rules, name, cidr, blockSizeBits, disabled });
  if (!result.ok) faults.push(...result.faults);
  if (result.ok && faults.length === 0) return result.spec;
  throw poolFaultsFailure('CreatePool', faults);
}

function readUpdatePoolRequest({ pool, updateMask }: UpdatePoolRequest): PoolChange {
  return readChecked('UpdatePool', (checks) => {
    checks.check('pool', pool ? undefined : 'is missing');
    if (!pool) return { name: '', resourceVersion: '' };
    checks.check('pool.name', subdomainFault(pool.name));
    const mask = readMask(updateMask ?? [], checks);
    const faults: PoolFault[] = [];
    const { cidr, blockSize: blockSizeBits, disabled } = pool;
    const all = { ...readRules(pool, faults), disabled };
    for (const { field, reason } of faults)
      if (mask.has(messageField(field))) checks.check(`pool.${messageField(field)}`, reason);
    return {
      name: pool.name,
      resourceVersion: pool.resourceVersion,
      ...masked(all, mask),
      ...(cidr === '' ? {} : { cidr }),
      ...(blockSizeBits === 0 ? {} : { blockSizeBits }),
    };
  });
}

/** @returns the fields to change, by their names in the contract */
function readMask(paths: readonly string[], checks: Checks): ReadonlySet<string> {
  const known = [...MASKED].join(', ');
  for (const path of paths)
    checks.check('update_mask', MASKED.has(path) ? undefined : `has unknown field "${path}"; use ${known}`);
  return paths.length === 0 ? MASKED : new Set(paths);
}

function masked(all: MutableFields, mask: ReadonlySet<string>): Partial<MutableFields> {
  const kept = MUTABLE_FIELDS.filter((field) => mask.has(messageField(field)));
  return kept.reduce<Partial<MutableFields>>((sum, field) => ({ ...sum, [field]: all[field] }), {});
}

function readRules(pool: PoolMessage, faults: PoolFault[]): PoolRules {
  const known = <Value>(field: PoolFault['field'], number: number, value: Value | undefined): Value | undefined => {
    if (value === undefined) faults.push({ field, reason: `is ${number}, which is not a valid value of this field` });
    return value;
  };
  const { natOutgoing, disableBgpExport, nodeSelector, namespaceSelector } = pool;
  return {
    ipipMode: known('ipipMode', pool.ipipMode, ENCAPSULATION_MODES.wordOf(pool.ipipMode)) ?? 'Never',
    vxlanMode: known('vxlanMode', pool.vxlanMode, ENCAPSULATION_MODES.wordOf(pool.vxlanMode)) ?? 'Never',
    natOutgoing,
    disableBgpExport,
    nodeSelector,
    namespaceSelector,
    allowedUses: pool.allowedUses.flatMap((use) => known('allowedUses', use, ADDRESS_USES.wordOf(use)) ?? []),
    assignmentMode:
      known('assignmentMode', pool.assignmentMode, ASSIGNMENT_MODES.wordOf(pool.assignmentMode)) ?? 'Automatic',
  };
}

const DELETION_MODES: Partial<Record<PoolDeletionMode, PoolDeletionRequest['whenInUse']>> = {
  [PoolDeletionMode.POOL_DELETION_MODE_UNSPECIFIED]: 'drain',
  [PoolDeletionMode.POOL_DELETION_MODE_DRAIN]: 'drain',
  [PoolDeletionMode.POOL_DELETION_MODE_REFUSE_IF_IN_USE]: 'refuse',
  [PoolDeletionMode.POOL_DELETION_MODE_RELEASE_ADDRESSES]: 'release',
};

function readDeletePoolRequest({ name, resourceVersion, mode, force }: DeletePoolRequest): PoolDeletionRequest {
  return readChecked('DeletePool', (checks) => {
    checks.check('name', subdomainFault(name));
    const whenInUse = DELETION_MODES[mode];
    checks.check('mode', whenInUse ? undefined : `is ${mode}, which is not a valid PoolDeletionMode`);
    return { name, resourceVersion, whenInUse: whenInUse ?? 'refuse', force };
  });
}

function readSplitPoolRequest({ pool, number, resourceVersion }: SplitPoolRequest): PoolSplitRequest {
  return readChecked('SplitPool', (checks) => {
    const reference = readPoolReference(pool, checks);
    const isPossible = number >= 2 && number <= MAX_PARTS && Number.isInteger(Math.log2(number));
    const reason = `is ${number}; it must be a power of two from 2 to ${MAX_PARTS}; the parts can be split again`;
    checks.check('number', isPossible ? undefined : reason);
    return { pool: reference, partsCount: number, resourceVersion };
  });
}

function cidrFault(fault: PrefixFault): string {
  return fault === 'has host bits set' ? fault : `is ${fault}, such as 10.65.0.0/16`;
}

function readPoolReference(pool: SplitPoolRequest['pool'], checks: Checks): PoolReference {
  switch (pool?.$case) {
    case 'name':
      checks.check('name', subdomainFault(pool.value));
      return { by: 'name', name: pool.value };
    case 'cidr': {
      const parsed = parsePrefix(pool.value);
      checks.check('cidr', parsed.ok ? undefined : cidrFault(parsed.fault));
      return parsed.ok ? { by: 'range', range: parsed.prefix } : { by: 'name', name: '' };
    }
    case undefined:
      checks.check('pool', 'is missing: set one of name and cidr');
      return { by: 'name', name: '' };
  }
}

/** A pool may be spread over thousands of nodes, and the response has to stay small. */
const LISTED_HOLDERS = 100;

function deletePoolResponse(deleted: PoolDeleted): DeletePoolResponse {
  const { isGone, removedBlocks, releasedAddresses, kept, holders } = deleted;
  return {
    deletedBlocks: BigInt(removedBlocks),
    state: isGone ? PoolState.POOL_STATE_UNSPECIFIED : PoolState.POOL_STATE_DRAINING,
    heldAddresses: BigInt(holders.inUseCount),
    coolingAddresses: BigInt(holders.coolingCount),
    leasedAddresses: BigInt(holders.leasedCount),
    holders: holders.nodes
      .slice(0, LISTED_HOLDERS)
      .map(({ nodeName, count }) => ({ nodeName, addresses: BigInt(count) })),
    releasedAddresses: BigInt(releasedAddresses),
    unreadableRecord: holders.unreadable?.key ?? '',
    ...keptMessage(kept),
  };
}

export function poolMessage({ pool, utilization, fullInSeconds }: PoolListing): PoolMessage {
  const { capacity, allocated, cooling, reserved, available, leased, blocks } = utilization;
  return {
    ...poolFields(pool),
    utilization: {
      capacity: String(capacity),
      allocated,
      free: String(reserved + available),
      blocks,
      cooling,
      reserved: String(reserved),
      available: String(available),
      leased,
      fullInSeconds,
    },
  };
}

/** A pool's message without its utilization, which is computed from the blocks. */
export function poolFields(pool: Pool): PoolMessage {
  return {
    name: pool.name,
    cidr: formatPrefix(pool.prefix),
    blockSize: pool.blockSizeBits,
    disabled: pool.disabled,
    createTime: new Date(pool.createTimeMs),
    resourceVersion: poolVersion(pool),
    utilization: undefined,
    ipipMode: ENCAPSULATION_MODES.constants[pool.ipipMode],
    vxlanMode: ENCAPSULATION_MODES.constants[pool.vxlanMode],
    natOutgoing: pool.natOutgoing,
    disableBgpExport: pool.disableBgpExport,
    nodeSelector: pool.nodeSelector,
    namespaceSelector: pool.namespaceSelector,
    allowedUses: pool.allowedUses.map(useMessage),
    assignmentMode: ASSIGNMENT_MODES.constants[pool.assignmentMode],
    state: stateOf(pool),
    stateReason: unavailableReason(pool) ?? '',
    deleteTime: pool.deletionTimeMs === undefined ? undefined : new Date(pool.deletionTimeMs),
  };
}

/** Calico may have stored a use that this release does not know. */
function useMessage(use: string): AddressUse {
  const word = USE_WORDS.find((each) => each === use);
  return word ? ADDRESS_USES.constants[word] : AddressUse.ADDRESS_USE_UNSPECIFIED;
}

function stateOf({ deletionTimeMs, disabled, notAllocatable }: Pool): PoolState {
  if (deletionTimeMs !== undefined) return PoolState.POOL_STATE_DRAINING;
  if (disabled) return PoolState.POOL_STATE_DISABLED;
  return notAllocatable === undefined ? PoolState.POOL_STATE_ACTIVE : PoolState.POOL_STATE_NOT_ALLOCATABLE;
}
