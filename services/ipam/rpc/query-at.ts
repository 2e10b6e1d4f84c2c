import type { QueryAtRequest, QueryAtResponse } from '@podwire/proto/podwire/ipam/v1/history';
import type { Handler } from '@podwire/shared/rpc/unary';

import { readQueryAtRequest, tenureMessage } from '../history/history-rpc.js';
import type { Ipam } from '../ipam.js';

export function queryAt(ipam: Ipam): Handler<QueryAtRequest, QueryAtResponse> {
  return async (message, { signal }) => {
    const { address, atMs } = readQueryAtRequest(message);
    const { tenure, isCovered } = await ipam.history.at(address, atMs, signal);
    return { tenure: tenure && tenureMessage(tenure), covered: isCovered };
  };
}
