import type { RepairPodRequest, RepairPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Dataplane } from '../dataplane.js';
import { readPodNetwork } from './wire.js';

export function repairPod(dataplane: Dataplane): Handler<RepairPodRequest, RepairPodResponse> {
  return async ({ pod }, { signal }) => {
    const network = checked('RepairPod', (checks) => readPodNetwork(pod, checks));
    return { differences: [...(await dataplane.repair(network, signal))] };
  };
}
