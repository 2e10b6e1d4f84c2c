import { readNetworkConfig } from '../cni/config.js';
import { commandMissing } from '../cni/version.js';

/**
 * GC: removes what belongs to no attachment that the runtime lists. It came with CNI 1.1.0, which this release does not speak.
 * @throws Failure INCOMPATIBLE_CNI_VERSION, always
 */
export function gc(configuration: string): never {
  throw commandMissing('GC', readNetworkConfig(configuration).cniVersion);
}
