import type { RepairRequest, RepairResponse } from '@podwire/proto/podwire/ipam/v1/maintenance';
import type { Handler } from '@podwire/shared/rpc/unary';

import { readRepairRequest, repairedMessage } from '../audit/audit-rpc.js';
import type { Ipam } from '../ipam.js';

export function repair(ipam: Ipam): Handler<RepairRequest, RepairResponse> {
  return async (message, { signal }) => {
    const { results, more } = await ipam.audits.repair(readRepairRequest(message), signal);
    return { results: results.map(repairedMessage), more };
  };
}
