import type { ListPoolsRequest, ListPoolsResponse } from '@podwire/proto/podwire/ipam/v1/pool';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { PoolQuery } from '../allocator/listing.js';
import type { Ipam } from '../ipam.js';
import { poolMessage } from '../pools/pools-rpc.js';

const SCOPE: ListScope = ['pools'];

export function listPools(ipam: Ipam): Handler<ListPoolsRequest, ListPoolsResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.pools.list(readQuery(message), signal);
    const last = items.at(-1);
    return {
      pools: items.map(poolMessage),
      nextPageToken: more && last ? formatPageToken(SCOPE, last.pool.name) : '',
    };
  };
}

function readQuery(message: ListPoolsRequest): PoolQuery {
  return checked('ListPools', (checks) => ({
    limit: readPageSize(message, checks),
    after: readPageToken(message, SCOPE, checks),
  }));
}
