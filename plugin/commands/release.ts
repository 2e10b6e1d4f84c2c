import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { withAttachment, type Logger } from '@podwire/shared/runtime/log';

import { callDelegate } from '../addresses/ipam-plugin.js';
import type { Delegate } from '../addresses/mode.js';
import type { CallToCome, HeldAddress, Limits } from '../clients/clients.js';
import type { Debt, JournalEntry, Todo } from '../journal/entry.js';
import type { Turns } from '../requests/attachment-queue.js';
import type { CommandTools, Tools } from './context.js';

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
    // Another IPAM plugin does not report the addresses that it holds.
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

/** Whether the allocation is known. If not, all addresses of the attachment are released. */
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

interface DiscardOptions {
  readonly turns: Turns;
  /** Fires when the caller disconnects; steps not started by then are skipped. */
  readonly cancel: AbortController;
}

/**
 * Discards an attachment's journal entry without executing it. Runs in the attachment's queue, after any release in
 * flight: an executed entry is already gone. Idempotent.
 * @returns the discarded entry; undefined if there is none
 * @throws Failure STATE_IO if earlier entries cannot be read; CANCELLED
 */
export function discardEntry(
  attachment: Attachment,
  tools: Pick<Tools, 'journal' | 'givers'>,
  { turns, cancel }: DiscardOptions,
): Promise<JournalEntry | undefined> {
  const { journal } = tools;
  const turn = {
    command: 'DISCARD',
    attachment,
    startedNs: undefined,
    deadlineMs: Number.POSITIVE_INFINITY,
    cancel,
  } as const;
  const work = async () => {
    const entry = journal.get(attachment);
    if (entry) await journal.discard(entry, giverNamesOf(entry, tools));
    return entry;
  };
  return withAttachment(attachment, () => turns.take(turn, work));
}

interface SettleEntryOptions extends SettleOptions {
  readonly turns: Turns;
}

/**
 * Does what an entry of the journal says, in the attachment's turn, and strikes it out. What its turn finds changed or gone by then
 * is done as it is then.
 * @returns what is left, or undefined
 */
export function settleEntry(
  { attachment }: JournalEntry,
  tools: Tools,
  { turns, ...options }: SettleEntryOptions,
): Promise<Unsettled | undefined> {
  const turn = {
    command: 'REPLAY',
    attachment,
    startedNs: undefined,
    deadlineMs: Number.POSITIVE_INFINITY,
    cancel: new AbortController(),
  } as const;
  const work = async () => {
    const entry = tools.journal.get(attachment);
    if (!entry) return undefined;
    const unsettled = await settle(entry, tools, options);
    if (!unsettled) await tools.journal.done(attachment);
    return unsettled;
  };
  return withAttachment(attachment, () => turns.take(turn, work));
}

/**
 * Does what an earlier ADD that failed, or DEL, of the attachment left, so that an ADD begins with nothing. In the ADD's turn.
 * @throws Failure why it cannot be done; nothing is allocated then
 */
export async function finishEarlier(attachment: Attachment, tools: CommandTools): Promise<void> {
  const entry = tools.journal.get(attachment);
  if (!entry) return;
  const unsettled = await settle(entry, tools, { limitsOf: () => tools.limits });
  if (!unsettled) return tools.journal.done(attachment);
  const { code, message, details } = unsettled.failure;
  throw new Failure(code, `what an earlier ADD or DEL of this attachment left cannot be finished yet: ${message}`, {
    details,
    cause: unsettled.failure,
  });
}

/**
 * Timeout of a service call after an ADD's deadline or while the process is stopping, in milliseconds. Enough for a
 * running service; a caller need not wait longer, as the journal retries.
 */
export const SILENT_SERVICE_MS = 500;

/**
 * Limits of a service call that continues after its caller disconnects. It is cancelled when the process ends; calls
 * started later have {@link SILENT_SERVICE_MS}.
 */
export function limitsWithoutCaller({ limits, ending, clock }: CommandTools, deadlineMs: number): Limits {
  if (!ending.aborted) return { ...limits, deadlineMs, signal: ending };
  const lastMs = Math.min(deadlineMs, clock.nowMs() + SILENT_SERVICE_MS);
  return { ...limits, deadlineMs: lastMs, signal: new AbortController().signal };
}

/** As many as show what is wrong: each is tried again in every round, and by every GC. */
const MAX_REFUSED_COUNT = 16;

/**
 * Writes a debt to the node's journal. Of those that another IPAM plugin refuses to take back after it had refused the ADD itself, which by
 * CNI leaves nothing, the latest stay: a configuration that it refuses would leave one for each attempt to start a pod.
 */
export async function writeDown(debt: Omit<Debt, 'refused'>, tools: Tools): Promise<void> {
  const { journal, knownAllocations, log } = tools;
  const { attachment } = debt;
  // An earlier process may have seen the ADD. One that came later would have struck the entry out before it asked.
  const isRefused = knownAllocations.wasRefused(attachment) || journal.get(attachment)?.refused;
  await journal.add({ ...debt, ...(isRefused && { refused: true }) });
  if (!isRefused) return;
  const refused = journal.entries().filter((entry) => entry.refused);
  for (const entry of refused.slice(0, -MAX_REFUSED_COUNT)) {
    await failureOf(() => journal.discard(entry, giverNamesOf(entry, tools)), { log, what: 'giving up an entry' });
  }
}
