import type { EnsureBlockRequest, EnsureBlockResponse } from '@podwire/proto/podwire/ipam/v1/affinity';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import { readPools } from '../addresses/allocate-rpc.js';
import type { Ipam } from '../ipam.js';
import { FAMILIES } from '../messages/parts.js';
import { subdomainFault } from '../records/names.js';

export function ensureBlock(ipam: Ipam): Handler<EnsureBlockRequest, EnsureBlockResponse> {
  return async ({ nodeName, family: message, pools: texts }, { signal }) => {
    const demand = checked('EnsureBlock', (checks) => {
      checks.check('node_name', subdomainFault(nodeName));
      const family = FAMILIES[message];
      checks.check('family', family ? undefined : `is ${message}, which is no family: IPv4 is 4, IPv6 is 6`);
      return { nodeName, family: family ?? 4, pools: readPools(texts, checks) };
    });
    const { block, isNew } = await ipam.affinities.ensureBlock(demand, signal);
    return { cidr: formatPrefix(block), newlyClaimed: isNew };
  };
}
