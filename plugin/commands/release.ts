import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { withAttachment, type Logger } from '@podwire/shared/runtime/log';

import { callDelegate } from '../addresses/ipam-plugin.js';
import type { Delegate } from '../addresses/mode.js';
import type { HeldAddress, Limits } from '../clients/clients.js';
import type { PendingRelease, JournalEntry, ReleaseAction } from '../journal/entry.js';
import type { AttachmentQueue } from '../requests/attachment-queue.js';
import type { CommandTools, Tools } from './context.js';

export type Service = 'podwire-dataplane' | 'podwire-ipam' | `IPAM plugin ${string}`;

/** The remaining action of a release that failed. */
export interface FailedRelease {
  readonly action: ReleaseAction;
  /** The service that failed. */
  readonly service: Service;
  readonly failure: Failure;
}

export interface ReleaseOptions {
  /** Called at the start of each call to a service. */
  readonly limitsOf: (service: Service) => Limits;
  /** Services that are not called, as they did not answer before. */
  readonly skip?: ReadonlySet<string>;
  /** Whether the addresses' provider is known to be `delegate`, or podwire-ipam without one. Implied if `held` is known. */
  readonly isProviderKnown?: boolean;
}

/**
 * Removes a wire, then releases the addresses: never while a wire may use them, as podwire-ipam could allocate them to another
 * pod. Idempotent.
 * @returns the remaining action; undefined when done
 */
export async function release(
  { attachment, action, held, netns, delegate }: Omit<PendingRelease, 'reason'>,
  tools: Tools,
  { limitsOf, skip = new Set(), isProviderKnown = false }: ReleaseOptions,
): Promise<FailedRelease | undefined> {
  const { dataplane, ipam, log } = tools;
  const attempt = <Value>(service: Service, work: (limits: Limits) => Promise<Value>): Promise<Outcome<Value>> =>
    skip.has(service)
      ? Promise.resolve({ ok: false, failure: new Failure('UNREACHABLE', `${service} does not answer`) })
      : outcomeOf(() => work(limitsOf(service)), { log, what: `${action} of an attachment` });

  let remaining = action;
  if (action === 'detach-and-release') {
    const detached = await attempt('podwire-dataplane', (limits) => dataplane.detachPod({ attachment, netns }, limits));
    if (!detached.ok) return { action, service: 'podwire-dataplane', failure: detached.failure };
    remaining = 'release';
  }
  if (action === 'release-unless-attached') {
    // A delegated IPAM plugin cannot list the addresses of an attachment.
    if (!delegate) {
      const endpoint = await attempt('podwire-ipam', (limits) => ipam.getEndpoint(attachment, limits));
      if (!endpoint.ok) return { action, service: 'podwire-ipam', failure: endpoint.failure };
      if (!endpoint.value) {
        // The Allocate may still be in flight after its caller gave up. No allocation outlives an answered Release.
        const released = await attempt('podwire-ipam', (limits) => ipam.release(attachment, limits));
        return released.ok ? undefined : { action, service: 'podwire-ipam', failure: released.failure };
      }
    }
    const attached = await attempt('podwire-dataplane', (limits) => dataplane.isAttached(attachment, limits));
    if (!attached.ok) return { action, service: 'podwire-dataplane', failure: attached.failure };
    if (attached.value) return undefined;
  }
  for (const provider of providersOf({ attachment, held, delegate, isProviderKnown }, tools)) {
    const service = serviceOf(provider);
    const target = { attachment, held: provider === delegate ? held : undefined, delegate: provider };
    const released = await attempt(service, (limits) => releaseFrom(target, tools, limits));
    if (!released.ok) return { action: remaining, service, failure: released.failure };
  }
  return undefined;
}

/** @param delegate - undefined for podwire-ipam */
export function serviceOf(delegate: Pick<Delegate, 'type'> | undefined): Service {
  return delegate ? `IPAM plugin ${delegate.type}` : 'podwire-ipam';
}

/** Providers to release the addresses from; undefined is podwire-ipam. Providers of earlier configurations come last. */
function providersOf(
  { attachment, held, delegate, isProviderKnown }: ReleaseTarget & Pick<ReleaseOptions, 'isProviderKnown'>,
  { providerHistory }: Pick<Tools, 'providerHistory'>,
): (Delegate | undefined)[] {
  if (isProviderKnown || isKnown(held)) return [delegate];
  const former = providerHistory.formerProviders(attachment, delegate);
  return [delegate, ...(former.isIpam ? [undefined] : []), ...former.delegates];
}

/** Names of the providers that a pending release calls; `podwire-ipam` for Podwire's own. */
export function providerNamesOf(
  { attachment, held, delegate }: PendingRelease,
  tools: Pick<Tools, 'providerHistory'>,
): readonly string[] {
  const names = providersOf({ attachment, held, delegate }, tools).map((provider) => provider?.type ?? 'podwire-ipam');
  return [...new Set(names)];
}

/** Whether the allocation is known. Otherwise all addresses of the attachment are released. */
function isKnown(held: readonly HeldAddress[] | undefined): held is readonly HeldAddress[] {
  return held !== undefined && held.length > 0;
}

interface ReleaseTarget {
  readonly attachment: Attachment;
  readonly held: readonly HeldAddress[] | undefined;
  readonly delegate: Delegate | undefined;
}

async function releaseFrom({ attachment, held, delegate }: ReleaseTarget, tools: Tools, limits: Limits): Promise<void> {
  const { ipam, upkeep, clock, circuitBreaker } = tools;
  if (delegate) {
    await circuitBreaker.run(attachment.network, delegate, () => callDelegate(delegate, 'DEL', { clock, limits }));
    return;
  }
  if (isKnown(held)) await upkeep.ipam.releaseHeld(attachment, held, limits);
  else await ipam.release(attachment, limits);
}

type Outcome<Value> = { readonly ok: true; readonly value: Value } | { readonly ok: false; readonly failure: Failure };

interface DefectContext {
  readonly log: Logger;
  /** Names the work in the log. */
  readonly what: string;
}

/** Catches a failure, so that the caller can continue with other work. Logs a defect. */
async function outcomeOf<Value>(work: () => Promise<Value>, { log, what }: DefectContext): Promise<Outcome<Value>> {
  try {
    return { ok: true, value: await work() };
  } catch (error) {
    if (error instanceof Failure) return { ok: false, failure: error };
    log.error({ err: error }, `defect: ${what}`);
    const failure = new Failure('INTERNAL', 'internal error: see the log of podwire-plugin', { cause: error });
    return { ok: false, failure };
  }
}

/** Returns the failure of a piece of work instead of throwing it. Logs a defect. */
export async function failureOf(work: () => Promise<unknown>, context: DefectContext): Promise<Failure | undefined> {
  const outcome = await outcomeOf(work, context);
  return outcome.ok ? undefined : outcome.failure;
}

interface DiscardOptions {
  readonly queue: AttachmentQueue;
  /** Fires when the caller disconnects; steps not started by then are skipped. */
  readonly cancel: AbortController;
}

/**
 * Discards an attachment's journal entry without executing it. Waits in the attachment's queue for a release in flight,
 * which may complete the entry first. Idempotent.
 * @returns the discarded entry; undefined if there is none
 * @throws Failure STATE_IO if earlier entries cannot be read; CANCELLED
 */
export function discardEntry(
  attachment: Attachment,
  tools: Pick<Tools, 'journal' | 'providerHistory'>,
  { queue, cancel }: DiscardOptions,
): Promise<JournalEntry | undefined> {
  const { journal } = tools;
  const queued = {
    command: 'DISCARD',
    attachment,
    startedNs: undefined,
    deadlineMs: Number.POSITIVE_INFINITY,
    cancel,
  } as const;
  const work = async () => {
    const entry = journal.get(attachment);
    if (entry) await journal.discard(entry, providerNamesOf(entry, tools));
    return entry;
  };
  return withAttachment(attachment, () => queue.run(queued, work));
}

interface ReplayEntryOptions extends ReleaseOptions {
  readonly queue: AttachmentQueue;
}

/**
 * Executes a journal entry in the attachment's queue and removes it when done. Uses the attachment's entry of that moment: it
 * may have changed while waiting in the queue.
 * @returns the remaining action; undefined when done or when there is no entry any more
 */
export function replayEntry(
  { attachment }: JournalEntry,
  tools: Tools,
  { queue, ...options }: ReplayEntryOptions,
): Promise<FailedRelease | undefined> {
  const queued = {
    command: 'REPLAY',
    attachment,
    startedNs: undefined,
    deadlineMs: Number.POSITIVE_INFINITY,
    cancel: new AbortController(),
  } as const;
  const work = async () => {
    const entry = tools.journal.get(attachment);
    if (!entry) return undefined;
    const failed = await release(entry, tools, options);
    if (!failed) await tools.journal.done(attachment);
    return failed;
  };
  return withAttachment(attachment, () => queue.run(queued, work));
}

/**
 * Executes the pending release of an earlier ADD or DEL, so that ADD starts without leftovers. ADD calls it in its place in the
 * queue.
 * @throws Failure of the release; nothing is allocated then
 */
export async function replayPending(attachment: Attachment, tools: CommandTools): Promise<void> {
  const entry = tools.journal.get(attachment);
  if (!entry) return;
  const failed = await release(entry, tools, { limitsOf: () => tools.limits });
  if (!failed) return tools.journal.done(attachment);
  const { code, message, details } = failed.failure;
  throw new Failure(code, `the pending release of an earlier ADD or DEL of this attachment failed: ${message}`, {
    details,
    cause: failed.failure,
  });
}

/**
 * Timeout of a call in two cases: a rollback calls a service that the ADD timed out on, or the process is stopping. In
 * milliseconds. Enough for a running service; the journal retries.
 */
export const UNRESPONSIVE_SERVICE_TIMEOUT_MS = 500;

/**
 * Limits of a service call that continues after its caller disconnects. It is cancelled when the process ends; a call
 * started later has {@link UNRESPONSIVE_SERVICE_TIMEOUT_MS}.
 */
export function limitsAfterDisconnect({ limits, ending, clock }: CommandTools, deadlineMs: number): Limits {
  if (!ending.aborted) return { ...limits, deadlineMs, signal: ending };
  const lastMs = Math.min(deadlineMs, clock.nowMs() + UNRESPONSIVE_SERVICE_TIMEOUT_MS);
  return { ...limits, deadlineMs: lastMs, signal: new AbortController().signal };
}

/** Enough for an operator to see the cause. Each costs a call in every round and every GC. */
const MAX_REFUSED_COUNT = 16;

/**
 * Writes a pending release to the node's journal. Keeps only the latest entries whose delegate rejected both the ADD and the
 * DEL: by CNI it holds nothing then, and a rejected configuration would add an entry for each attempt to start a pod.
 */
export async function persistRelease(pending: Omit<PendingRelease, 'refused'>, tools: Tools): Promise<void> {
  const { journal, knownAllocations, log } = tools;
  const { attachment } = pending;
  // The entry may be of an earlier process that saw the ADD. A later ADD would have removed the entry.
  const isRefused = knownAllocations.wasRefused(attachment) || journal.get(attachment)?.refused;
  await journal.add({ ...pending, ...(isRefused && { refused: true }) });
  if (!isRefused) return;
  const refused = journal.entries().filter((entry) => entry.refused);
  for (const entry of refused.slice(0, -MAX_REFUSED_COUNT)) {
    await failureOf(() => journal.discard(entry, providerNamesOf(entry, tools)), { log, what: 'discarding an entry' });
  }
}
