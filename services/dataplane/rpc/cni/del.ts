import type { DelReply, DelRequest } from '@podwire/proto/calico/cni/cnibackend';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import type { Handler } from '@podwire/shared/rpc/unary';

import { errorMessage, readDel } from '../../pods/calico-cni-rpc.js';
import type { Dataplane } from '../../pods/pods.js';
import { withinLimit } from './limit.js';

/** What the methods of Calico's contract act on. */
export interface CniParts {
  readonly dataplane: Dataplane;
  /** Told of each failure, as the reply that carries it is a success to gRPC. */
  readonly refused: (method: 'Add' | 'Del', error: unknown) => void;
}

export function cniDel({ dataplane, refused }: CniParts): Handler<DelRequest, DelReply> {
  return async (request, call) => {
    try {
      const attachment = readDel(request);
      // A namespace without a path is one that is gone; which it was is not known.
      const { netns } = request;
      const detaching = { dataplane, attachment, netns };
      if (netns !== '') await withinLimit(call.signal, (signal) => detach(detaching, signal));
      return { successful: true, errorMessage: '' };
    } catch (error) {
      refused('Del', error);
      return { successful: false, errorMessage: errorMessage(error) };
    }
  };
}

interface Detaching {
  readonly dataplane: Dataplane;
  readonly attachment: Attachment;
  readonly netns: string;
}

/** The host's end has the name that Add was given: the records know it, or else the link itself says whose it is. */
async function detach({ dataplane, attachment, netns }: Detaching, signal: AbortSignal): Promise<void> {
  if (await dataplane.detach({ attachment, netns, hostInterfaceName: hostInterfaceName(attachment) }, signal)) return;
  const { links } = await dataplane.list({ limit: Infinity, after: '' });
  const name = formatAttachment(attachment);
  for (const { attachment: other, link } of links) {
    if (formatAttachment(other) !== name) continue;
    await dataplane.detach({ attachment, hostInterfaceName: link.name }, signal);
  }
}
