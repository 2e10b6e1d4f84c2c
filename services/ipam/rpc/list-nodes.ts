import type { ListNodesRequest, ListNodesResponse } from '@podwire/proto/podwire/ipam/v1/node';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { nodeMessage } from '../nodes/nodes-rpc.js';
import type { NodeQuery } from '../nodes/nodes.js';

const SCOPE: ListScope = ['nodes'];

export function listNodes(ipam: Ipam): Handler<ListNodesRequest, ListNodesResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.nodes.list(readQuery(message), signal);
    const last = items.at(-1);
    return {
      nodes: items.map(nodeMessage),
      nextPageToken: more && last ? formatPageToken(SCOPE, last.node.name) : '',
    };
  };
}

function readQuery(message: ListNodesRequest): NodeQuery {
  return checked('ListNodes', (checks) => ({
    limit: readPageSize(message, checks),
    after: readPageToken(message, SCOPE, checks),
  }));
}
