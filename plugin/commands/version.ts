import { versionResult, type VersionResult } from '../cni/version.js';

/** VERSION: the versions of the specification that this release speaks. The shim answers it too, without asking. */
export function version(): VersionResult {
  return versionResult();
}
