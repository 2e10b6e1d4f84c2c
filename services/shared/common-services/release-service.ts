import { ReleaseServiceService } from '@podwire/proto/podwire/release/v1/release';

import type { ProcessRelease } from '../runtime/process-release.js';
import type { RpcService } from '../rpc/server.js';
import { unaryService, type Unary } from '../rpc/unary.js';

/** The service that reports the release of its process. */
export function releaseService(own: ProcessRelease, unary: Unary): RpcService {
  return unaryService(ReleaseServiceService, unary, { getRelease: () => Promise.resolve(own) });
}
