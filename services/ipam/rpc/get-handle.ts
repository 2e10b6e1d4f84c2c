import type { GetHandleRequest, GetHandleResponse } from '@podwire/proto/podwire/ipam/v1/handle';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { addressAt } from '@podwire/shared/net/prefix';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import { handleFault } from '../allocator/handle-name.js';
import { handleAddressMessage } from '../handles/handles-rpc.js';
import type { HandleAddressQuery } from '../handles/handles.js';
import type { Ipam } from '../ipam.js';

export function getHandle(ipam: Ipam): Handler<GetHandleRequest, GetHandleResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.handles.addresses(readQuery(message), signal);
    const last = items.at(-1);
    const lastAddress = last && formatAddress(addressAt(last.block.prefix, last.ordinal));
    return {
      addresses: items.map(handleAddressMessage),
      nextPageToken: more && lastAddress ? formatPageToken(scopeOf(message), lastAddress) : '',
    };
  };
}

function scopeOf({ handleId }: GetHandleRequest): ListScope {
  return ['handle', handleId];
}

function readQuery(message: GetHandleRequest): HandleAddressQuery {
  return checked('GetHandle', (checks) => {
    checks.check('handle_id', handleFault(message.handleId));
    return {
      handleId: message.handleId,
      limit: readPageSize(message, checks),
      after: parseAddress(readPageToken(message, scopeOf(message), checks)),
    };
  });
}
