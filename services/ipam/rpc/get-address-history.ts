import type { GetAddressHistoryRequest, GetAddressHistoryResponse } from '@podwire/proto/podwire/ipam/v1/history';
import { formatPageToken } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import { formatPlace, historyScope, readHistoryRequest, tenureMessage } from '../history/history-rpc.js';
import type { Ipam } from '../ipam.js';

export function getAddressHistory(ipam: Ipam): Handler<GetAddressHistoryRequest, GetAddressHistoryResponse> {
  return async (message, { signal }) => {
    const { tenures, next } = await ipam.history.query(readHistoryRequest(message), signal);
    return {
      tenures: tenures.map(tenureMessage),
      nextPageToken: next ? formatPageToken(historyScope(message), formatPlace(next)) : '',
    };
  };
}
