import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

import type { HeldAddress, Limits } from '../clients/clients.js';
import type { Debt, Todo } from '../journal/entry.js';
import type { Tools } from './tools.js';

export type Service = 'podwire-dataplane' | 'podwire-ipam';

/** What could not be done, and why. */
export interface Unsettled {
  readonly todo: Todo;
  /** The service that did not do it. */
  readonly service: Service;
  readonly failure: Failure;
}

export interface SettleOptions {
  /** The time for each call to a service, as it begins. */
  readonly limitsOf: () => Limits;
  /** Services that are known not to answer. */
  readonly skip?: ReadonlySet<string>;
}

/**
 * Takes a wire away, and then gives the addresses back: never while a wire may lead to them, as the next pod could have them by then.
 * Idempotent.
 * @returns what is left, or undefined
 */
export async function settle(
  { attachment, todo, held }: Omit<Debt, 'reason'>,
  tools: Tools,
  { limitsOf, skip = new Set() }: SettleOptions,
): Promise<Unsettled | undefined> {
  const { dataplane, ipam, log } = tools;
  const attempt = async (service: Service, work: () => Promise<unknown>): Promise<Failure | undefined> =>
    skip.has(service)
      ? new Failure('UNREACHABLE', `${service} does not answer`)
      : failureOf(work, { log, what: `${todo} of an attachment` });

  let next = todo;
  if (todo === 'detach-and-release') {
    const failure = await attempt('podwire-dataplane', () => dataplane.detachPod(attachment, limitsOf()));
    if (failure) return { todo, service: 'podwire-dataplane', failure };
    next = 'release';
  }
  if (todo === 'release-unless-attached') {
    let isHeld = false;
    const ask = async () => (isHeld = (await ipam.getEndpoint(attachment, limitsOf())) !== undefined);
    const unknown = await attempt('podwire-ipam', ask);
    if (unknown) return { todo, service: 'podwire-ipam', failure: unknown };
    if (!isHeld) return undefined;
    let isAttached = true;
    const look = async () => (isAttached = await dataplane.isAttached(attachment, limitsOf()));
    const failure = await attempt('podwire-dataplane', look);
    if (failure) return { todo, service: 'podwire-dataplane', failure };
    if (isAttached) return undefined;
  }
  const failure = await attempt('podwire-ipam', () => release({ attachment, held }, tools, limitsOf()));
  return failure && { todo: next, service: 'podwire-ipam', failure };
}

interface Release {
  readonly attachment: Attachment;
  readonly held: readonly HeldAddress[] | undefined;
}

async function release({ attachment, held }: Release, { ipam, upkeep }: Tools, limits: Limits): Promise<void> {
  if (!held || held.length === 0) return ipam.release(attachment, limits);
  try {
    await upkeep.ipam.releaseHeld(attachment, held, limits);
  } catch (failure) {
    // An earlier release of IPAM knows attachments alone; this node's turns keep a later ADD from being meant.
    if (!(failure instanceof Failure && failure.code === 'UNIMPLEMENTED')) throw failure;
    await ipam.release(attachment, limits);
  }
}

/** What a piece of work fails with, where it does. A defect is logged, and must not keep the rest from being tried. */
export async function failureOf(
  work: () => Promise<unknown>,
  { log, what }: { readonly log: Logger; readonly what: string },
): Promise<Failure | undefined> {
  try {
    await work();
    return undefined;
  } catch (error) {
    if (error instanceof Failure) return error;
    log.error({ err: error }, `defect: ${what}`);
    return new Failure('INTERNAL', 'internal error: see the log of podwire-plugin', { cause: error });
  }
}
