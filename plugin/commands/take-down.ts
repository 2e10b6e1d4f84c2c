import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Limits } from '../clients/clients.js';
import type { Tools } from './tools.js';

/** Something that could not be taken away. */
export interface Leftover {
  /** What is left, for people: `the pod's interface may still be there`. */
  readonly what: string;
  readonly failure: Failure;
}

/** Detaches an attachment and then releases its addresses; the second also when the first fails. @returns what is left */
export async function takeDown(attachment: Attachment, tools: Tools, limits: Limits): Promise<Leftover[]> {
  // A dataplane that does not answer must leave IPAM its share of the time.
  const nowMs = tools.clock.nowMs();
  const detachLimits = { ...limits, deadlineMs: nowMs + (limits.deadlineMs - nowMs) / 2 };
  const { dataplane, ipam, log } = tools;
  return [
    ...(await leftoverOf("the pod's interface may still be there", log, () =>
      dataplane.detachPod(attachment, detachLimits),
    )),
    ...(await leftoverOf('its addresses may still be held', log, () => ipam.release(attachment, limits))),
  ];
}

/** Tries something whose failure must not keep the rest from being tried. */
export async function leftoverOf(what: string, log: Logger, work: () => Promise<unknown>): Promise<Leftover[]> {
  try {
    await work();
    return [];
  } catch (error) {
    if (error instanceof Failure) return [{ what, failure: error }];
    log.error({ err: error }, `defect: ${what}`);
    return [
      { what, failure: new Failure('INTERNAL', 'internal error: see the log of podwire-plugin', { cause: error }) },
    ];
  }
}

/** What is left, and why, in one line. */
export function describeLeftovers(leftovers: readonly Leftover[]): string {
  return leftovers.map(({ what, failure }) => `${what} (${failure.message})`).join('; ');
}
