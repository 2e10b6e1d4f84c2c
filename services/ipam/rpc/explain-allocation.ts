import type { ExplainAllocationRequest, ExplainAllocationResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../ipam.js';
import { explanationMessage, readExplainAllocationRequest } from './wire-explain.js';

export function explainAllocation(ipam: Ipam): Handler<ExplainAllocationRequest, ExplainAllocationResponse> {
  return async (message, { signal }) => {
    const { asked, maxBlocksCount } = readExplainAllocationRequest(message);
    return explanationMessage(await ipam.assignments.explain(asked, { maxBlocksCount }, signal));
  };
}
