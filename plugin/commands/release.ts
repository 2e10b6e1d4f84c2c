import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

import { callDelegate } from '../addresses/ipam-plugin.js';
import type { Delegate } from '../addresses/mode.js';
import type { CallToCome, HeldAddress, Limits } from '../clients/clients.js';
import type { Debt, Todo } from '../journal/entry.js';
import type { Tools } from './context.js';

export type Service = 'podwire-dataplane' | 'podwire-ipam' | `IPAM plugin ${string}`;

/** What could not be done, and why. */
export interface Unsettled {
  readonly todo: Todo;
  /** The service that did not do it. */
  readonly service: Service;
  readonly failure: Failure;
}

export interface SettleOptions {
  /** The time for each call to a service, as it begins. */
  readonly limitsOf: (service: Service) => Limits;
  /** Services that are known not to answer. */
  readonly skip?: ReadonlySet<string>;
  /** Whether it is known that the debt names who gave the addresses. Default: where it names the allocation. */
  readonly isGiverKnown?: boolean;
}

/**
 * Takes a wire away, and then gives the addresses back: never while a wire may lead to them, as the next pod could have them by then.
 * Idempotent.
 * @returns what is left, or undefined
 */
export async function settle(
  debt: Omit<Debt, 'reason'>,
  tools: Tools,
  options: SettleOptions,
): Promise<Unsettled | undefined> {
  const { todo, held, delegate } = debt;
  const releases = todo === 'detach-and-release' && !delegate && !isKnown(held) && !options.skip?.has('podwire-ipam');
  const releasing = releases ? tools.ipam.openRelease(options.limitsOf('podwire-ipam')) : undefined;
  try {
    return await settleInOrder(debt, tools, { releasing, ...options });
  } finally {
    releasing?.close();
  }
}

interface InOrder extends SettleOptions {
  /** Opened while the wire is taken away. */
  readonly releasing: Releasing | undefined;
}

type Releasing = CallToCome<Attachment, void>;

async function settleInOrder(
  { attachment, todo, held, netns, delegate }: Omit<Debt, 'reason'>,
  tools: Tools,
  { limitsOf, skip = new Set(), isGiverKnown = false, releasing }: InOrder,
): Promise<Unsettled | undefined> {
  const { dataplane, ipam, log } = tools;
  const attempt = <Value>(service: Service, work: (limits: Limits) => Promise<Value>): Promise<Outcome<Value>> =>
    skip.has(service)
      ? Promise.resolve({ ok: false, failure: new Failure('UNREACHABLE', `${service} does not answer`) })
      : outcomeOf(() => work(limitsOf(service)), { log, what: `${todo} of an attachment` });

  let next = todo;
  if (todo === 'detach-and-release') {
    const detached = await attempt('podwire-dataplane', (limits) => dataplane.detachPod({ attachment, netns }, limits));
    if (!detached.ok) return { todo, service: 'podwire-dataplane', failure: detached.failure };
    next = 'release';
  }
  if (todo === 'release-unless-attached') {
    // Another IPAM plugin does not tell what it holds.
    if (!delegate) {
      const endpoint = await attempt('podwire-ipam', (limits) => ipam.getEndpoint(attachment, limits));
      if (!endpoint.ok) return { todo, service: 'podwire-ipam', failure: endpoint.failure };
      if (!endpoint.value) {
        // What it was asked for may still be on its way, though its caller gave up; no allocation outlives a release that was answered.
        const released = await attempt('podwire-ipam', (limits) => ipam.release(attachment, limits));
        return released.ok ? undefined : { todo, service: 'podwire-ipam', failure: released.failure };
      }
    }
    const attached = await attempt('podwire-dataplane', (limits) => dataplane.isAttached(attachment, limits));
    if (!attached.ok) return { todo, service: 'podwire-dataplane', failure: attached.failure };
    if (attached.value) return undefined;
  }
  for (const giver of giversOf({ attachment, held, delegate, isGiverKnown }, tools)) {
    const service = serviceOf(giver);
    const work = { attachment, held: giver === delegate ? held : undefined, delegate: giver, releasing };
    const released = await attempt(service, (limits) => release(work, tools, limits));
    if (!released.ok) return { todo: next, service, failure: released.failure };
  }
  return undefined;
}

/** @param giver - undefined for podwire-ipam */
export function serviceOf(giver: Pick<Delegate, 'type'> | undefined): Service {
  return giver ? `IPAM plugin ${giver.type}` : 'podwire-ipam';
}

/** Those to give the addresses back to; undefined stands for podwire-ipam. Who gave them before today's configuration comes last. */
function giversOf(
  { attachment, held, delegate, isGiverKnown }: Release & Pick<SettleOptions, 'isGiverKnown'>,
  { givers }: Pick<Tools, 'givers'>,
): (Delegate | undefined)[] {
  if (isGiverKnown || isKnown(held)) return [delegate];
  const former = givers.formerOf(attachment, delegate);
  return [delegate, ...(former.isIpam ? [undefined] : []), ...former.delegates];
}

/** Names of the IPAM plugins that are to take the addresses of a debt back, `podwire-ipam` for Podwire's own. */
export function giverNamesOf({ attachment, held, delegate }: Debt, tools: Pick<Tools, 'givers'>): readonly string[] {
  const names = giversOf({ attachment, held, delegate }, tools).map((giver) => giver?.type ?? 'podwire-ipam');
  return [...new Set(names)];
}

/** Whether an allocation is named, which is given back as that; else it is whatever the attachment holds. */
function isKnown(held: readonly HeldAddress[] | undefined): held is readonly HeldAddress[] {
  return held !== undefined && held.length > 0;
}

interface Release {
  readonly attachment: Attachment;
  readonly held: readonly HeldAddress[] | undefined;
  readonly delegate: Delegate | undefined;
}

async function release(
  { attachment, held, delegate, releasing }: Release & Pick<InOrder, 'releasing'>,
  tools: Tools,
  limits: Limits,
): Promise<void> {
  const { ipam, upkeep, clock, hanging } = tools;
  if (delegate) {
    await hanging.watch(attachment.network, delegate, () => callDelegate(delegate, 'DEL', { clock, limits }));
    return;
  }
  if (isKnown(held)) await upkeep.ipam.releaseHeld(attachment, held, limits);
  else await (releasing ? releasing.make(attachment, limits) : ipam.release(attachment, limits));
}

/** What became of a piece of work. */
type Outcome<Value> = { readonly ok: true; readonly value: Value } | { readonly ok: false; readonly failure: Failure };

interface Circumstances {
  readonly log: Logger;
  /** The work, for the log. */
  readonly what: string;
}

/** Does a piece of work whose failure must not keep the rest from being tried. A defect is logged. */
async function outcomeOf<Value>(work: () => Promise<Value>, { log, what }: Circumstances): Promise<Outcome<Value>> {
  try {
    return { ok: true, value: await work() };
  } catch (error) {
    if (error instanceof Failure) return { ok: false, failure: error };
    log.error({ err: error }, `defect: ${what}`);
    const failure = new Failure('INTERNAL', 'internal error: see the log of podwire-plugin', { cause: error });
    return { ok: false, failure };
  }
}

/** What a piece of work fails with, where it does. A defect is logged, and must not keep the rest from being tried. */
export async function failureOf(
  work: () => Promise<unknown>,
  circumstances: Circumstances,
): Promise<Failure | undefined> {
  const outcome = await outcomeOf(work, circumstances);
  return outcome.ok ? undefined : outcome.failure;
}
