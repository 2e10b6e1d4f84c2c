import type { ReleaseHandleRequest, ReleaseHandleResponse } from '@podwire/proto/podwire/ipam/v1/handle';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { checked } from '@podwire/shared/rpc/checks';
import type { Handler } from '@podwire/shared/rpc/unary';

import { cutHandle, handleFault } from '../allocator/handle-name.js';
import type { Ipam } from '../ipam.js';

export function releaseHandle(ipam: Ipam): Handler<ReleaseHandleRequest, ReleaseHandleResponse> {
  return async (message, { signal }) => {
    const handleId = cutHandle(message.handleId);
    checked('ReleaseHandle', (checks) => checks.check('handle_id', handleFault(handleId)));
    const released = await ipam.handles.release({ handleId, searchesAllBlocks: message.searchAllBlocks }, signal);
    return { addresses: released.map(formatPrefix) };
  };
}
