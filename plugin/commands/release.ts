import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { withAttachment, type Logger } from '@podwire/shared/runtime/log';

import type { AddressProvider } from '../addresses/address-provider.js';
import { providerOf, providersOf } from '../addresses/provider-history.js';
import type { LeasedAddress, Limits } from '../clients/clients.js';
import type { PendingRelease, JournalEntry, ReleaseAction } from '../journal/entry.js';
import type { AttachmentQueue } from '../requests/attachment-queue.js';
import type { CommandTools, Tools } from './context.js';

export type Service = 'dataplane' | AddressProvider['name'];

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
  /** Whether no other provider may hold the addresses. Implied if `held` is known. */
  readonly isProviderKnown?: boolean;
  /** The leases that a failed ADD took; podwire-ipam knows no attachment for them. */
  readonly leases?: readonly LeasedAddress[] | undefined;
}

/**
 * Removes a wire, then releases the addresses: never while a wire may use them, as podwire-ipam could allocate them to another
 * pod. Idempotent.
 * @returns the remaining action; undefined when done
 */
export async function release(
  pending: Omit<PendingRelease, 'reason'>,
  tools: Tools,
  { limitsOf, skip = new Set(), isProviderKnown = false, leases }: ReleaseOptions,
): Promise<FailedRelease | undefined> {
  const { attachment, action, held, netns } = pending;
  const own = providerOf(pending);
  let remaining = action;
  let service: Service = own.name;
  const call = <Value>(called: Service, work: (callTools: CommandTools) => Promise<Value>): Promise<Value> => {
    service = called;
    if (skip.has(called)) throw new Failure('UNREACHABLE', `${called} does not answer`);
    return work({ ...tools, limits: limitsOf(called) });
  };
  const detachAndRelease = async (): Promise<void> => {
    if (action === 'detach-and-release') {
      const { nodeAddresses } = tools;
      const isRecorded = nodeAddresses.recorded(attachment)?.allocation !== undefined;
      await call('dataplane', ({ dataplane, limits }) => dataplane.detachPod({ attachment, netns }, limits));
      remaining = 'release';
      // The record returns the addresses in the background.
      if (isRecorded) return;
      if (leases) {
        nodeAddresses.giveBack(leases);
        return;
      }
    }
    if (action === 'release-unless-attached') {
      const { hasAllocation } = own;
      if (hasAllocation && !(await call(own.name, (callTools) => hasAllocation(attachment, callTools)))) {
        // The Allocate may still be in flight after its caller gave up. No allocation outlives an answered Release.
        return call(own.name, (callTools) => own.release(attachment, undefined, callTools));
      }
      const isAttached = ({ dataplane, limits }: CommandTools) => dataplane.isAttached(attachment, limits);
      if (await call('dataplane', isAttached)) return;
    }
    for (const [index, provider] of providersOf(pending, tools.providerHistory, isProviderKnown).entries()) {
      const ownHeld = index === 0 ? held : undefined;
      await call(provider.name, (callTools) => provider.release(attachment, ownHeld, callTools));
    }
  };
  const failure = await failureOf(`${action} of an attachment`, detachAndRelease, tools.log);
  return failure && { action: remaining, service, failure };
}

/** Names of the providers that a pending release calls; `podwire-ipam` for Podwire's own. */
export function providerNamesOf(
  pending: PendingRelease,
  { providerHistory }: Pick<Tools, 'providerHistory'>,
): readonly string[] {
  return [...new Set(providersOf(pending, providerHistory).map(({ type }) => type))];
}

/**
 * Returns the failure of a piece of work instead of throwing it, so that the caller can continue. Logs a defect.
 * @param what - names the work in the log
 */
export async function failureOf(what: string, work: () => Promise<unknown>, log: Logger): Promise<Failure | undefined> {
  try {
    await work();
    return undefined;
  } catch (error) {
    if (error instanceof Failure) return error;
    log.error({ err: error }, `defect: ${what}`);
    return new Failure('INTERNAL', 'internal error: see the log of podwire-node', { cause: error });
  }
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
  const work = async () => {
    const entry = journal.get(attachment);
    if (entry) await journal.discard(entry, providerNamesOf(entry, tools));
    return entry;
  };
  return withAttachment(attachment, () => queue.run({ command: 'DISCARD', attachment, cancel }, work));
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
  const work = async () => {
    const entry = tools.journal.get(attachment);
    if (!entry) return undefined;
    const failed = await release(entry, tools, options);
    if (!failed) await tools.journal.done(attachment);
    return failed;
  };
  return withAttachment(attachment, () => queue.run({ command: 'REPLAY', attachment }, work));
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
 * Writes a pending release to the node's journal. Keeps only the latest entries whose IPAM plugin rejected both the ADD and the
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
    await failureOf('discarding an entry', () => journal.discard(entry, providerNamesOf(entry, tools)), log);
  }
}
