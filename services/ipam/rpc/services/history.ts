import { HistoryServiceService, type HistoryServiceServer } from '@podwire/proto/podwire/ipam/v1/history';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { getAddressHistory } from '../get-address-history.js';
import { queryAt } from '../query-at.js';

export function historyService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: HistoryServiceServer = {
    getAddressHistory: unary(HistoryServiceService.getAddressHistory, getAddressHistory(ipam)),
    queryAt: unary(HistoryServiceService.queryAt, queryAt(ipam)),
  };
  return { name: 'podwire.ipam.v1.HistoryService', definition: HistoryServiceService, implementation };
}
