import { Failure } from '@podwire/shared/failure/failure';
import { RELEASE, releaseFault } from '@podwire/shared/rpc/release';

import type { Command } from './cni/environment.js';
import type { Notices } from './requests/once-logger.js';
import type { CniRequest } from './requests/request.js';

/**
 * Refuses a call by a shim that is too far from this release, before anything is done. STATUS says so, so that the node gets no pods. DEL
 * is carried out all the same, with a warning: what it needs is CNI's own, and a pod that cannot be deleted hangs.
 * @throws Failure RELEASE_MISMATCH, or NOT_READY for STATUS
 */
export function requireNeighbouringShim(
  command: Command,
  { shimRelease }: Pick<CniRequest, 'shimRelease'>,
  notices: Notices,
): void {
  const fault = releaseFault(RELEASE, shimRelease);
  if (fault === undefined || command === 'VERSION') return;
  const message = `podwire-plugin ${fault}: the caller is the shim in CNI_PATH, which "podwire install" of the plugin's release replaces`;
  if (command === 'DEL') {
    notices.distantShim(message);
    return;
  }
  throw new Failure(command === 'STATUS' ? 'NOT_READY' : 'RELEASE_MISMATCH', message);
}
