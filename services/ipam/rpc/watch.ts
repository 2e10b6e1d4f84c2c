import type { WatchRequest } from '@podwire/proto/podwire/ipam/v1/watch';
import type { StreamHandler } from '@podwire/shared/rpc/streaming';

import type { Watches } from '../watch/hub.js';
import { readWatchRequest } from '../watch/watch-rpc.js';

/** Messages are bytes, see `wire-watch.ts`. */
export function watch(watches: Watches): StreamHandler<WatchRequest, Uint8Array> {
  return (message, { signal }) => watches.watch(readWatchRequest(message), signal);
}
