import type {
  CreatePoolRequest,
  DeletePoolRequest,
  GetPoolRequest,
  Pool as PoolMessage,
} from '@podwire/proto/podwire/ipam/v1/pool';
import { violationsFailure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';

import { checkPool, type PoolFault, type PoolSpec } from '../allocator/create-pool.js';
import type { PoolDeletion } from '../allocator/delete-pool.js';
import { subdomainFault } from '../allocator/names.js';
import { poolVersion, type PoolListing } from '../allocator/pools.js';
import { checked } from '@podwire/shared/rpc/checks';

const FIELDS: Record<PoolFault['field'], string> = {
  name: 'pool.name',
  cidr: 'pool.cidr',
  blockSizeBits: 'pool.block_size',
};

export function readCreatePoolRequest({ pool }: CreatePoolRequest): PoolSpec {
  if (!pool)
    throw violationsFailure('INVALID_REQUEST', 'CreatePool refused', [{ field: 'pool', reason: 'is missing' }]);
  const { name, cidr, blockSize: blockSizeBits, disabled } = pool;
  const result = checkPool({ name, cidr, blockSizeBits, disabled });
  if (result.ok) return result.spec;
  const violations = result.faults.map(({ field, reason }) => ({ field: FIELDS[field], reason }));
  throw violationsFailure('INVALID_REQUEST', 'CreatePool refused', violations);
}

export function readGetPoolRequest({ name }: GetPoolRequest): string {
  return checked('GetPool', (checks) => {
    checks.check('name', subdomainFault(name));
    return name;
  });
}

export function readDeletePoolRequest({ name, resourceVersion }: DeletePoolRequest): PoolDeletion {
  return checked('DeletePool', (checks) => {
    checks.check('name', subdomainFault(name));
    return { name, resourceVersion };
  });
}

export function poolMessage({ pool, utilization }: PoolListing): PoolMessage {
  const { capacity, allocated, blocks } = utilization;
  return {
    name: pool.name,
    cidr: formatPrefix(pool.prefix),
    blockSize: pool.blockSizeBits,
    disabled: pool.disabled,
    createTime: new Date(pool.createTimeMs),
    resourceVersion: poolVersion(pool),
    utilization: { capacity: String(capacity), allocated, free: String(capacity - allocated), blocks },
  };
}
