import { WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import type { RpcService } from '@podwire/shared/rpc/server';
import { preparedMethod, type Streaming } from '@podwire/shared/rpc/streaming';

import type { Watches } from '../../watch/hub.js';
import { watch } from '../watch.js';

export function watchService(watches: Watches, streaming: Streaming): RpcService {
  const method = preparedMethod(WatchServiceService.watch);
  return {
    name: 'podwire.ipam.v1.WatchService',
    definition: { watch: method },
    implementation: { watch: streaming(method, watch(watches)) },
  };
}
