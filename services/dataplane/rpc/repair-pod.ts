import type { RepairPodRequest, RepairPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Dataplane } from '../pods/pods.js';
import { differencesMessage } from './wire-differences.js';
import { wantedNetwork, type Recorded } from './wire-wanted.js';

export function repairPod(dataplane: Dataplane, recorded: Recorded): Handler<RepairPodRequest, RepairPodResponse> {
  return async (request, { signal }) => {
    const network = wantedNetwork('RepairPod', request, recorded);
    return differencesMessage(await dataplane.repair(network, signal));
  };
}
