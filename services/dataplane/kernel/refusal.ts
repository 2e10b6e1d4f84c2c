import { NetlinkError } from '@podwire/netlink';
import type { Failure } from '@podwire/shared/failure/failure';

import { kernelFailure, type Refusal } from '../pods/errno.js';

/** What the addon's error says, for the one function that makes failures of the kernel's errors. */
export function refusalOf(error: NetlinkError): Refusal {
  const { operation, object, code: errno, message } = error;
  return { operation, object, errno, message, cause: error };
}

export function failureOfNetlink(error: NetlinkError): Failure {
  return kernelFailure(refusalOf(error));
}

/** Runs a question to the kernel; what it refuses becomes a failure, anything else stays the defect that it is. */
export async function asking<Answer>(question: () => Promise<Answer>): Promise<Answer> {
  try {
    return await question();
  } catch (error) {
    throw error instanceof NetlinkError ? failureOfNetlink(error) : error;
  }
}

export function hasErrno(error: NetlinkError, errno: string): boolean {
  return error.code === errno;
}
