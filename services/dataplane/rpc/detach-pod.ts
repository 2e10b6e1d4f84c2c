import type { DetachPodRequest, DetachPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { hostInterfaceName as derivedName } from '@podwire/shared/attachment/names';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Dataplane, Detachment } from '../dataplane.js';
import { hostInterfaceNameFault, readAttachment } from './wire.js';

export function detachPod(dataplane: Dataplane): Handler<DetachPodRequest, DetachPodResponse> {
  return async (message, { signal }) => ({ removed: await dataplane.detach(readDetachment(message), signal) });
}

function readDetachment({ attachment, hostInterfaceName }: DetachPodRequest): Detachment {
  return checked('DetachPod', (check) => {
    if (hostInterfaceName !== '') check.check('host_interface_name', hostInterfaceNameFault(hostInterfaceName));
    const named = readAttachment(attachment, { at: 'attachment', check });
    return { attachment: named, hostInterfaceName: hostInterfaceName === '' ? derivedName(named) : hostInterfaceName };
  });
}
