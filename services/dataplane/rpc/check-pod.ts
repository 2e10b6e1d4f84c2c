import type { CheckPodRequest, CheckPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Dataplane } from '../dataplane.js';
import { readPodNetwork } from './wire.js';

export function checkPod(dataplane: Dataplane): Handler<CheckPodRequest, CheckPodResponse> {
  return async ({ pod }, { signal }) => {
    const network = checked('CheckPod', (checks) => readPodNetwork(pod, checks));
    return { differences: await dataplane.check(network, signal) };
  };
}
