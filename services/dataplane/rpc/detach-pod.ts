import type { DetachPodRequest, DetachPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { hostInterfaceName as derivedName } from '@podwire/shared/attachment/names';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Detachment } from '../attachments/outcomes.js';
import { hostInterfaceNameFault, netnsFault, readAttachment } from '../pods/pods-rpc.js';
import type { Dataplane } from '../pods/pods.js';

export function detachPod(dataplane: Dataplane): Handler<DetachPodRequest, DetachPodResponse> {
  return async (message, { signal }) => ({ removed: await dataplane.detach(readDetachment(message), signal) });
}

function readDetachment({ attachment, hostInterfaceName, netns }: DetachPodRequest): Detachment {
  return checked('DetachPod', (check) => {
    if (netns !== undefined) check.check('netns', netnsFault(netns));
    if (hostInterfaceName !== '') check.check('host_interface_name', hostInterfaceNameFault(hostInterfaceName));
    const named = readAttachment(attachment, { at: 'attachment', check });
    const name = hostInterfaceName === '' ? derivedName(named) : hostInterfaceName;
    return { attachment: named, hostInterfaceName: name, netns };
  });
}
