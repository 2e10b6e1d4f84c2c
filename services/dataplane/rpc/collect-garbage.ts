import type { CollectGarbageRequest, CollectGarbageResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { identifierFault, MAX_NETWORK_BYTES } from '@podwire/shared/attachment/attachment';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { GarbageCollector, GarbageRequest } from '../pods/garbage.js';
import { readAttachment } from '../pods/pods-rpc.js';

export function collectGarbage(garbage: GarbageCollector): Handler<CollectGarbageRequest, CollectGarbageResponse> {
  return async (message, { signal }) => {
    const { removed, failed } = await garbage.collect(readGarbageRequest(message), signal);
    return {
      removed: [...removed],
      failures: failed.map(({ attachment, failure: { code, message: text } }) => ({ attachment, code, message: text })),
    };
  };
}

function readGarbageRequest({ validAttachments, network }: CollectGarbageRequest): GarbageRequest {
  return checked('CollectGarbage', (check) => {
    if (!validAttachments) check.check('valid_attachments', 'is missing; set it to an empty list if nothing may stay');
    if (network !== '') check.check('network', identifierFault(network, MAX_NETWORK_BYTES));
    const valid = (validAttachments?.attachments ?? []).map((attachment, position) =>
      readAttachment(attachment, { at: `valid_attachments.attachments[${position}]`, check }),
    );
    return { valid, network: network === '' ? undefined : network };
  });
}
