import type { ListHandlesRequest, ListHandlesResponse } from '@podwire/proto/podwire/ipam/v1/handle';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import { handleMessage } from '../handles/handles-rpc.js';
import type { Ipam } from '../ipam.js';

const SCOPE: ListScope = ['handles'];

export function listHandles(ipam: Ipam): Handler<ListHandlesRequest, ListHandlesResponse> {
  return async (message, { signal }) => {
    const query = checked('ListHandles', (checks) => ({
      limit: readPageSize(message, checks),
      after: readPageToken(message, SCOPE, checks),
    }));
    const { items, more } = await ipam.handles.list(query, signal);
    const last = items.at(-1);
    return {
      handles: items.map(handleMessage),
      nextPageToken: more && last ? formatPageToken(SCOPE, last.id) : '',
    };
  };
}
