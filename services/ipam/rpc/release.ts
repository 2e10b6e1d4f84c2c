import type { ReleaseRequest, ReleaseResponse } from '@podwire/proto/podwire/ipam/v1/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import type { Handler } from '@podwire/shared/rpc/unary';
import { withAttachment } from '@podwire/shared/runtime/log';

import type { Ipam } from '../ipam.js';
import { checked } from '@podwire/shared/rpc/checks';
import { readAttachment } from './wire-attachment.js';

export function release(ipam: Ipam): Handler<ReleaseRequest, ReleaseResponse> {
  return async (message, { signal }) => {
    const attachment = checked('Release', (checks) => readAttachment(message.attachment, checks));
    const { addresses } = await withAttachment(attachment, () => ipam.addresses.release(attachment, signal));
    return { addresses: addresses.map(formatPrefix) };
  };
}
