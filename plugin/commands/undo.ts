import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';

import { isRefusal } from '../addresses/ipam-plugin.js';
import type { Delegate } from '../addresses/mode.js';
import type { HeldAddress } from '../clients/clients.js';
import type { Debt } from '../journal/entry.js';
import type { CommandTools } from './context.js';
import { limitsWithoutCaller, serviceOf, settle, SILENT_SERVICE_MS, writeDown, type Service } from './release.js';

/**
 * How far an ADD came, and with it what it may take away again.
 *
 * An ADD must not touch what an earlier, successful ADD of the same attachment made: a pod lives on it. Held is what is both
 * allocated and wired; what is allocated alone is left from an ADD that was cut off.
 */
export type Progress =
  /** Addresses are all that is made here. They are not known where Allocate has not answered, and held where an earlier ADD made them. */
  | { readonly reached: 'addresses'; readonly held: boolean; readonly allocation: readonly HeldAddress[] | undefined }
  /** Allocate was called, and has not answered: who holds the addresses is not known. */
  | { readonly reached: 'allocating' }
  /** The addresses are there, and AttachPod was called. */
  | { readonly reached: 'attaching'; readonly held: boolean; readonly allocation: readonly HeldAddress[] };

export interface FailedAdd {
  readonly attachment: Attachment;
  /** Who gave the addresses, where that is another IPAM plugin. */
  readonly delegate?: Delegate | undefined;
  readonly progress: Progress;
  readonly error: unknown;
}

/**
 * Takes away what a failed ADD made, within the time that is set aside for it. What that is too short for is written to the node's
 * journal: a runtime need not send a DEL after an ADD that failed.
 * @returns what the ADD is to throw: its own error, with what is left where something is
 */
export async function undo(
  { attachment, delegate, progress, error }: FailedAdd,
  tools: CommandTools,
): Promise<unknown> {
  // Nothing was begun, and what the attachment has, it had before: a pod may live on it.
  if (error instanceof Failure && error.code === 'REQUEST_DENIED') return error;
  const toUndo = workOf({ attachment, progress });
  if (!toUndo) return error;
  const work = { ...toUndo, delegate };
  const { clock, cleanUpTimeoutMs } = tools;
  const overallMs = clock.nowMs() + cleanUpTimeoutMs;
  const silent = silentServices({ delegate, progress, error });
  const limitsOf = (service: Service) => {
    const deadlineMs = silent.includes(service) ? Math.min(overallMs, clock.nowMs() + SILENT_SERVICE_MS) : overallMs;
    return limitsWithoutCaller(tools, deadlineMs);
  };
  const unsettled = await settle(work, tools, { limitsOf });
  if (!unsettled) return error;
  const { todo, service, failure } = unsettled;
  // Its wire was looked for before.
  if (isRefusal(error, delegate) && service === serviceOf(delegate)) tools.knownAllocations.rememberRefused(attachment);
  await writeDown({ reason: tracedMessage(failure), ...work, todo }, tools);
  return withRest(error, failure);
}

function workOf({
  attachment,
  progress,
}: Pick<FailedAdd, 'attachment' | 'progress'>): Omit<Debt, 'reason'> | undefined {
  switch (progress.reached) {
    case 'addresses':
      return progress.held ? undefined : { attachment, todo: 'release', held: progress.allocation };
    // This ADD has attached nothing yet, so a wire proves that an earlier one holds the addresses.
    case 'allocating':
      return { attachment, todo: 'release-unless-attached', held: undefined };
    case 'attaching':
      return progress.held ? undefined : { attachment, todo: 'detach-and-release', held: progress.allocation };
  }
}

/** Those of Podwire's services that may be the ones that the ADD waited for in vain. */
function silentServices({ delegate, progress, error }: Omit<FailedAdd, 'attachment'>): readonly Service[] {
  const isSilence = error instanceof Failure && (error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED');
  if (!isSilence) return [];
  if (progress.reached === 'attaching') return ['podwire-dataplane'];
  return delegate ? [] : ['podwire-ipam', 'podwire-dataplane'];
}

function withRest(error: unknown, rest: Failure): Failure {
  const isSame = error instanceof Failure && error.message === rest.message;
  const [when, why] = isSame ? ['yet, for the same reason,', ''] : ['yet', `: ${rest.message}`];
  const left = `what it began could not be undone ${when} and is in the node's journal, to be undone later${why}`;
  if (!(error instanceof Failure)) return new Failure('INTERNAL', `internal error; ${left}`, { cause: error });
  const { code, message, violations, details } = error;
  return new Failure(code, `${message}; ${left}`, { violations, details, cause: error });
}
