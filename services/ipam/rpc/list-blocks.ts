import type { ListBlocksRequest, ListBlocksResponse } from '@podwire/proto/podwire/ipam/v1/block';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { checked, type Checks } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { BlockQuery } from '../allocator/listing.js';
import { blockMessage } from '../blocks/blocks-rpc.js';
import type { Ipam } from '../ipam.js';
import { subdomainFault } from '../records/names.js';

export function listBlocks(ipam: Ipam): Handler<ListBlocksRequest, ListBlocksResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.blocks.list(readQuery(message), signal);
    const last = items.at(-1);
    return {
      blocks: items.map(blockMessage),
      nextPageToken: more && last ? formatPageToken(scopeOf(message), formatPrefix(last.block.prefix)) : '',
    };
  };
}

function scopeOf({ poolName, nodeName }: ListBlocksRequest): ListScope {
  return ['blocks', poolName, nodeName];
}

function readQuery(message: ListBlocksRequest): BlockQuery {
  const { poolName, nodeName } = message;
  return checked('ListBlocks', (checks) => {
    if (poolName !== '') checks.check('pool_name', subdomainFault(poolName));
    if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
    return { limit: readPageSize(message, checks), after: readAfter(message, checks), poolName, nodeName };
  });
}

function readAfter(message: ListBlocksRequest, checks: Checks): Prefix | undefined {
  const cidr = readPageToken(message, scopeOf(message), checks);
  if (cidr === '') return undefined;
  const parsed = parsePrefix(cidr);
  if (parsed.ok) return parsed.prefix;
  checks.check('page_token', 'names no block; begin without one');
  return undefined;
}
