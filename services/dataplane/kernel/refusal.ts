import { NetlinkError } from '@podwire/netlink';
import type { Failure } from '@podwire/shared/failure/failure';
import { counter, onFirstUse } from '@podwire/shared/telemetry/instruments';

import { kernelFailure, type Refusal } from '../pods/errno.js';

const errors = onFirstUse(() => counter('podwire.dataplane.netlink.errors'));

/** Converts the addon's error for `kernelFailure`, the only place that translates kernel errors. */
export function refusalOf(error: NetlinkError): Refusal {
  const { operation, object, code: errno, message } = error;
  errors().add(1, { errno });
  return { operation, object, errno, message, cause: error };
}

export function failureOfNetlink(error: NetlinkError): Failure {
  return kernelFailure(refusalOf(error));
}

/** Runs a kernel request: turns its refusal into a failure, and rethrows other errors, which are defects. */
export async function callKernel<Answer>(request: () => Promise<Answer>): Promise<Answer> {
  try {
    return await request();
  } catch (error) {
    throw error instanceof NetlinkError ? failureOfNetlink(error) : error;
  }
}

export function hasErrno(error: NetlinkError, errno: string): boolean {
  return error.code === errno;
}
