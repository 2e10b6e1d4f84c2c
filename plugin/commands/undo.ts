import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';

import type { AddressProvider } from '../addresses/address-provider.js';
import type { HeldAddress, LeasedAddress } from '../clients/clients.js';
import type { PendingRelease } from '../journal/entry.js';
import type { CommandTools } from './context.js';
import {
  limitsAfterDisconnect,
  persistRelease,
  release,
  UNRESPONSIVE_SERVICE_TIMEOUT_MS,
  type Service,
} from './release.js';

/**
 * The step in which an ADD failed, which determines what the rollback may remove.
 *
 * A rollback must not touch what an earlier, successful ADD of the same attachment created, as a running pod uses it. That is
 * `held`: both allocated and wired. An allocation without a wire is a leftover of an interrupted ADD.
 */
export type Progress =
  /** In ipam-only mode. `allocation` is undefined until Allocate has answered. */
  | { readonly reached: 'addresses'; readonly held: boolean; readonly allocation: readonly HeldAddress[] | undefined }
  /** Allocate was called and has not answered: whether it allocated is unknown. */
  | { readonly reached: 'allocating' }
  /** Allocated; AttachPod was called. */
  | {
      readonly reached: 'attaching';
      readonly held: boolean;
      readonly allocation: readonly HeldAddress[];
      /** The node's leases that were allocated; podwire-ipam knows no attachment for them. */
      readonly leases: readonly LeasedAddress[] | undefined;
    };

export interface FailedAdd {
  readonly attachment: Attachment;
  readonly provider: AddressProvider;
  readonly progress: Progress;
  readonly error: unknown;
}

/**
 * Rolls back a failed ADD within the clean-up timeout. What it cannot roll back is written to the node's journal, as a
 * runtime need not send a DEL after a failed ADD.
 * @returns the error for ADD to throw: its own, with the failure of the rollback if there is one
 */
export async function undo(failedAdd: FailedAdd, tools: CommandTools): Promise<unknown> {
  const { attachment, provider, error } = failedAdd;
  // ADD has not changed anything. What the attachment holds is an earlier ADD's, and a pod may use it.
  if (error instanceof Failure && error.code === 'REQUEST_DENIED') return error;
  const rollback = rollbackOf(failedAdd);
  if (!rollback) return error;
  const pending = { ...rollback, ...provider.source };
  const { clock, cleanUpTimeoutMs } = tools;
  const overallMs = clock.nowMs() + cleanUpTimeoutMs;
  const unresponsive = unresponsiveServices(failedAdd);
  const limitsOf = (service: Service) => {
    const deadlineMs = unresponsive.includes(service)
      ? Math.min(overallMs, clock.nowMs() + UNRESPONSIVE_SERVICE_TIMEOUT_MS)
      : overallMs;
    return limitsAfterDisconnect(tools, deadlineMs);
  };
  const leases = failedAdd.progress.reached === 'attaching' ? failedAdd.progress.leases : undefined;
  const failed = await release(pending, tools, { limitsOf, leases });
  if (!failed) return error;
  const { action, service, failure } = failed;
  // The rollback calls the provider only after it found no wire.
  if (provider.isRefusal(error) && service === provider.name) tools.knownAllocations.recordRefused(attachment);
  await persistRelease({ reason: tracedMessage(failure), ...pending, action }, tools);
  return withUndoFailure(error, failure);
}

function rollbackOf({ attachment, progress }: FailedAdd): Omit<PendingRelease, 'reason'> | undefined {
  switch (progress.reached) {
    case 'addresses':
      return progress.held ? undefined : { attachment, action: 'release', held: progress.allocation };
    // This ADD has attached nothing yet, so a wire proves that an earlier ADD holds the addresses.
    case 'allocating':
      return { attachment, action: 'release-unless-attached', held: undefined };
    case 'attaching':
      return progress.held ? undefined : { attachment, action: 'detach-and-release', held: progress.allocation };
  }
}

/** Podwire's services that may have caused the ADD's timeout. */
function unresponsiveServices({ provider, progress, error }: FailedAdd): readonly Service[] {
  const hasNoAnswer = error instanceof Failure && (error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED');
  if (!hasNoAnswer) return [];
  return progress.reached === 'attaching' ? ['dataplane'] : provider.services;
}

function withUndoFailure(error: unknown, undoFailure: Failure): Failure {
  const isSame = error instanceof Failure && error.message === undoFailure.message;
  const text = isSame
    ? "the rollback failed for the same reason and is pending in the node's journal"
    : `the rollback failed and is pending in the node's journal: ${undoFailure.message}`;
  if (!(error instanceof Failure)) return new Failure('INTERNAL', `internal error; ${text}`, { cause: error });
  const { code, message, violations, details } = error;
  return new Failure(code, `${message}; ${text}`, { violations, details, cause: error });
}
