import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { AddressProvider, ProvidedAllocation } from '../addresses/address-provider.js';
import type { Limits } from '../clients/clients.js';
import type { ReleaseAction } from '../journal/entry.js';
import { limitsAfterDisconnect, UNRESPONSIVE_SERVICE_TIMEOUT_MS, type ProcessEnd, type Releases } from './release.js';

export interface FailedAdd {
  readonly attachment: Attachment;
  readonly provider: AddressProvider;
  /** Undefined if Allocate has not answered: whether it allocated is unknown. */
  readonly allocation: ProvidedAllocation | undefined;
  /** What may have to be released. */
  readonly action: ReleaseAction;
  readonly error: unknown;
}

export interface UndoDeps extends ProcessEnd {
  readonly releases: Releases;
  /** Timeout of the rollback, in milliseconds, in addition to the ADD's own. */
  readonly cleanUpTimeoutMs: number;
}

/**
 * Rolls back a failed ADD within the clean-up timeout. What it cannot roll back stays pending, as a runtime need not send a DEL
 * after a failed ADD.
 * @returns the error for ADD to throw: its own, with the failure of the rollback if there is one
 */
export async function undo(failedAdd: FailedAdd, limits: Limits, deps: UndoDeps): Promise<unknown> {
  const { provider, allocation, error } = failedAdd;
  // ADD has not changed anything. What the attachment holds is an earlier ADD's, and a pod may use it.
  if (error instanceof Failure && error.code === 'REQUEST_DENIED') return error;
  const undone = { provider, allocation, isRefused: provider.isRefusal(error) };
  const incomplete = await deps.releases.undo(failedAdd, undone, { limitsOf: rollbackLimits(error, limits, deps) });
  return incomplete ? withUndoFailure(error, incomplete.failure) : error;
}

/**
 * Waits only briefly for a service that may have caused the ADD's timeout. An IPAM plugin is a program, which has a timeout of
 * its own.
 */
function rollbackLimits(error: unknown, limits: Limits, deps: UndoDeps): (service: string) => Limits {
  const { clock, cleanUpTimeoutMs } = deps;
  const overallMs = clock.nowMs() + cleanUpTimeoutMs;
  const hasNoAnswer = error instanceof Failure && (error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED');
  return (service) => {
    const isShort = hasNoAnswer && (service === 'dataplane' || service === 'podwire-ipam');
    const shortMs = isShort ? clock.nowMs() + UNRESPONSIVE_SERVICE_TIMEOUT_MS : overallMs;
    return limitsAfterDisconnect({ ...limits, deadlineMs: Math.min(overallMs, shortMs) }, deps);
  };
}

function withUndoFailure(error: unknown, undoFailure: Failure): Failure {
  const isSame = error instanceof Failure && error.message === undoFailure.message;
  const text = isSame
    ? 'the rollback failed for the same reason and is pending on this node'
    : `the rollback failed and is pending on this node: ${undoFailure.message}`;
  if (!(error instanceof Failure)) return new Failure('INTERNAL', `internal error; ${text}`, { cause: error });
  const { code, message, violations, details } = error;
  return new Failure(code, `${message}; ${text}`, { violations, details, cause: error });
}
