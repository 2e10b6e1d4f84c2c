import { readNetworkConfig } from '../cni/config.js';
import { commandMissing } from '../cni/version.js';

/**
 * STATUS: whether ADD could succeed. It came with CNI 1.1.0, which this release does not speak.
 * @throws Failure INCOMPATIBLE_CNI_VERSION, always
 */
export function status(configuration: string): never {
  throw commandMissing('STATUS', readNetworkConfig(configuration).cniVersion);
}
