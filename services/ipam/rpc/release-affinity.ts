import type { ReleaseAffinityRequest, ReleaseAffinityResponse } from '@podwire/proto/podwire/ipam/v1/affinity';
import type { Handler } from '@podwire/shared/rpc/unary';

import { readReleaseAffinityRequest, releasedAffinityMessage } from '../affinities/affinities-rpc.js';
import type { Ipam } from '../ipam.js';

export function releaseAffinity(ipam: Ipam): Handler<ReleaseAffinityRequest, ReleaseAffinityResponse> {
  return async (message, { signal }) => {
    const released = await ipam.affinities.release(readReleaseAffinityRequest(message), signal);
    return { affinities: released.map(releasedAffinityMessage) };
  };
}
