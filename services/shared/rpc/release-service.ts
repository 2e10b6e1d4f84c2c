import { ReleaseServiceService, type ReleaseServiceServer } from '@podwire/proto/podwire/release/v1/release';

import type { ProcessRelease } from '../runtime/process-release.js';
import type { RpcService } from './server.js';
import type { Unary } from './unary.js';

/** The service that reports the release of its process. */
export function releaseService(own: ProcessRelease, unary: Unary): RpcService {
  const implementation: ReleaseServiceServer = {
    getRelease: unary(ReleaseServiceService.getRelease, () => Promise.resolve(own)),
  };
  return { name: 'podwire.release.v1.ReleaseService', definition: ReleaseServiceService, implementation };
}
