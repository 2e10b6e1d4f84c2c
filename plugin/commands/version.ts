import { statedVersion } from '../cni/config.js';
import { OWN_VERSION, SUPPORTED_VERSIONS } from '../cni/version.js';
import type { CniRequest } from '../requests/request.js';

/** The answer to VERSION. */
export interface VersionResult {
  /** What the question stated, spoken here or not. */
  readonly cniVersion: string;
  readonly supportedVersions: readonly string[];
}

/** VERSION: the versions of the specification that this release speaks. The shim answers it too, without asking. */
export function version({ configuration }: CniRequest): VersionResult {
  return { cniVersion: statedVersion(configuration) ?? OWN_VERSION, supportedVersions: SUPPORTED_VERSIONS };
}
