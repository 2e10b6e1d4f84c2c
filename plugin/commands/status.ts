import type { Readiness } from '../readiness.js';
import { begunAtMs, readNodeRequest, type CniRequest } from '../request.js';

/**
 * STATUS: whether ADD could succeed. Changes nothing, and answers within half a second whatever hangs.
 * @throws Failure NOT_READY when it could not; PODS_AT_RISK when the node cannot keep account of what it deletes
 */
export async function status(request: CniRequest, readiness: Readiness): Promise<undefined> {
  await readiness.require(readNodeRequest('STATUS', request), begunAtMs(request));
  return undefined;
}
