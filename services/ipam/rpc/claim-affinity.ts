import type { ClaimAffinityRequest, ClaimAffinityResponse } from '@podwire/proto/podwire/ipam/v1/affinity';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import { readCidr } from '../affinities/affinities-rpc.js';
import type { Ipam } from '../ipam.js';
import { subdomainFault } from '../records/names.js';

export function claimAffinity(ipam: Ipam): Handler<ClaimAffinityRequest, ClaimAffinityResponse> {
  return async (message, { signal }) => {
    const { nodeName } = message;
    const cidr = checked('ClaimAffinity', (checks) => {
      checks.check('node_name', subdomainFault(nodeName));
      return readCidr('cidr', message.cidr, checks);
    });
    const { claimed, refused } = await ipam.affinities.claim({ cidr, nodeName }, signal);
    return {
      claimed: claimed.map(formatPrefix),
      refused: refused.map(({ block, reason }) => ({ cidr: formatPrefix(block), reason })),
    };
  };
}
