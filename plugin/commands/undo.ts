import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { Limits } from '../clients/clients.js';
import { describeLeftovers, leftoverOf, takeDown, type Leftover } from './take-down.js';
import type { Tools } from './tools.js';

/**
 * How far an ADD came, and with it what it may take away again.
 *
 * An ADD must not touch what an earlier, successful ADD of the same attachment made: a pod lives on it. Held is what is both
 * allocated and wired; what is allocated alone is left from an ADD that was cut off.
 */
export type Progress =
  /** Allocate was called, and has not answered: who holds the addresses is not known. */
  | { readonly reached: 'allocating' }
  /** The addresses are there, and AttachPod was called. */
  | { readonly reached: 'attaching'; readonly held: boolean };

export interface FailedAdd {
  readonly attachment: Attachment;
  readonly progress: Progress;
  readonly error: unknown;
}

/**
 * Takes away what a failed ADD made, within the time that is set aside for it.
 * @returns what the ADD is to throw: its own error, with what is left where something is
 */
export async function undo({ attachment, progress, error }: FailedAdd, tools: Tools): Promise<unknown> {
  const limits: Limits = {
    deadlineMs: tools.clock.nowMs() + tools.cleanUpTimeoutMs,
    signal: new AbortController().signal,
  };
  const leftovers = await takeAway({ attachment, progress }, tools, limits);
  if (leftovers.length === 0) return error;
  return withLeftovers(error, leftovers);
}

function takeAway(
  { attachment, progress }: Pick<FailedAdd, 'attachment' | 'progress'>,
  tools: Tools,
  limits: Limits,
): Promise<Leftover[]> {
  switch (progress.reached) {
    case 'allocating':
      return releaseUnlessHeld(attachment, tools, limits);
    case 'attaching':
      return progress.held ? Promise.resolve([]) : takeDown(attachment, tools, limits);
  }
}

/** After a lost answer: this ADD has attached nothing yet, so a wire proves that an earlier one holds the addresses. */
async function releaseUnlessHeld(attachment: Attachment, tools: Tools, limits: Limits): Promise<Leftover[]> {
  return leftoverOf('its addresses may be held', tools.log, async () => {
    const endpoint = await tools.ipam.getEndpoint(attachment, limits);
    if (!endpoint || (await tools.dataplane.isAttached(attachment, limits))) return;
    await tools.ipam.release(attachment, limits);
  });
}

function withLeftovers(error: unknown, leftovers: readonly Leftover[]): Failure {
  const left = `not all of it could be undone: ${describeLeftovers(leftovers)}; DEL takes it away`;
  if (!(error instanceof Failure)) return new Failure('INTERNAL', `internal error; ${left}`, { cause: error });
  const { code, message, violations, details } = error;
  return new Failure(code, `${message}; ${left}`, { violations, details, cause: error });
}
