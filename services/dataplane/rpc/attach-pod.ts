import type { AttachPodRequest, AttachPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import { interfaceMessage, readPodNetwork } from '../pods/pods-rpc.js';
import type { Dataplane } from '../pods/pods.js';

export function attachPod(dataplane: Dataplane): Handler<AttachPodRequest, AttachPodResponse> {
  return async ({ pod }, { signal }) => {
    const network = checked('AttachPod', (checks) => readPodNetwork(pod, checks));
    const attached = await dataplane.attach(network, signal);
    return {
      hostInterface: interfaceMessage(attached.host),
      podInterface: interfaceMessage(attached.pod),
      changes: attached.changes,
    };
  };
}
