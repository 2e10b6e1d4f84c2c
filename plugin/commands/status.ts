import { statedVersion } from '../cni/config.js';
import { OWN_VERSION, SUPPORTED_VERSIONS } from '../cni/version.js';
import { readNodeRequest, type CniRequest } from '../requests/request.js';
import type { Readiness } from './readiness.js';

/**
 * STATUS: whether the node can accept pods. Read-only; answers within half a second even if a service hangs.
 * @throws Failure NOT_READY when it cannot; PODS_AT_RISK when the node cannot persist pending releases
 */
export async function status(request: CniRequest, readiness: Readiness): Promise<undefined> {
  const nodeRequest = readNodeRequest('STATUS', request);
  await (request.isStrict ? readiness.requireAdd(nodeRequest) : readiness.require(nodeRequest));
  return undefined;
}

/** The answer to VERSION. */
interface VersionResult {
  /** Version as the request states it, supported or not. */
  readonly cniVersion: string;
  readonly supportedVersions: readonly string[];
}

/** VERSION: the supported versions of the specification. The shim answers VERSION itself; this is for direct calls. */
export function version({ configuration }: CniRequest): VersionResult {
  return { cniVersion: statedVersion(configuration) ?? OWN_VERSION, supportedVersions: SUPPORTED_VERSIONS };
}
