import type { CheckPodRequest, CheckPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Dataplane } from '../pods/pods.js';
import { differencesMessage } from './wire-differences.js';
import { wantedNetwork, type Recorded } from './wire-wanted.js';

export function checkPod(dataplane: Dataplane, recorded: Recorded): Handler<CheckPodRequest, CheckPodResponse> {
  return async (request, { signal }) => {
    const network = wantedNetwork('CheckPod', request, recorded);
    return differencesMessage(await dataplane.check(network, signal));
  };
}
