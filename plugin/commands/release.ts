import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { Failure, tracedMessage } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withAttachment, type Logger } from '@podwire/shared/runtime/log';

import type { AddressProvider, ProvidedAllocation } from '../addresses/address-provider.js';
import { isPermanentRefusal } from '../addresses/ipam-plugin.js';
import type { Providers } from '../addresses/providers.js';
import type { Dataplane, Detachment, Limits, NodeAddresses } from '../clients/clients.js';
import type { JournalEntry, PendingRelease, ReleaseAction } from '../journal/entry.js';
import type { Journal } from '../journal/journal.js';
import type { KnownAllocations } from '../journal/known-allocations.js';
import type { AttachmentQueue } from '../requests/attachment-queue.js';

export type Service = 'dataplane' | AddressProvider['name'];

/** A call of a release. */
interface ServiceCall {
  readonly service: Service;
  /** Remaining work if the call fails. */
  readonly action: ReleaseAction;
}

/** A release that ended early, and the call that failed. */
class IncompleteRelease extends Error {
  readonly call: ServiceCall;
  readonly failure: Failure;

  constructor(call: ServiceCall, failure: Failure) {
    super(failure.message, { cause: failure });
    this.call = call;
    this.failure = failure;
  }
}

/** How the services of a release are called. */
interface ReleaseOptions {
  /** Called at the start of each call to a service. */
  readonly limitsOf: (service: Service) => Limits;
  /** Services that are not called, as they did not answer before. */
  readonly skip?: ReadonlySet<string>;
}

/** An attachment's wire and addresses to release. */
type Release = Omit<PendingRelease, 'reason' | 'refused'>;

interface ReleasesOptions {
  readonly dataplane: Pick<Dataplane, 'detachPod' | 'isAttached'>;
  readonly nodeAddresses: Pick<NodeAddresses, 'recorded'>;
  readonly providers: Providers;
  readonly journal: Journal;
  readonly known: KnownAllocations;
  readonly queue: AttachmentQueue;
  readonly log: Logger;
}

/** An ADD to roll back. */
interface FailedAdd {
  readonly attachment: Attachment;
  readonly provider: AddressProvider;
  /** Allocation; undefined if Allocate has not answered: whether it allocated is unknown. */
  readonly allocation: ProvidedAllocation | undefined;
  /** Addresses and wire that may have to be released. */
  readonly action: ReleaseAction;
  readonly error: unknown;
}

/** Enough for an operator to see the cause. Each costs a call in every round and every GC. */
const MAX_REFUSED_COUNT = 16;

/**
 * Removes wires and releases addresses: never while a wire may use them, as another pod could get them.
 *
 * Unfinished work of a DEL or a failed ADD stays pending. The node's record keeps a detach of podwire-ipam's addresses, and
 * the dataplane completes it. The journal keeps all other releases.
 */
export class Releases {
  readonly #options: ReleasesOptions;

  constructor(options: ReleasesOptions) {
    this.#options = options;
  }

  /** DEL of an attachment. Idempotent. */
  async release(release: Release, options: ReleaseOptions): Promise<void> {
    // Released by attachment, in one call; the sequence numbers are for a later attempt.
    const providers = this.#options.providers.holding(release);
    const incomplete = await this.#attempt(() => this.#execute({ ...release, held: undefined }, providers, options));
    await this.#settle(release, incomplete);
  }

  /**
   * Rolls back the allocation of a failed ADD, and its possible wire.
   * @returns the failed call, if any; the rest is pending
   */
  async undo(
    { attachment, action, provider, allocation, error }: FailedAdd,
    options: ReleaseOptions,
  ): Promise<IncompleteRelease | undefined> {
    const { known } = this.#options;
    const release = { attachment, action, held: allocation?.endpoint.held, ...provider.source };
    const incomplete = await this.#attempt(async () => {
      if (!allocation) return this.#execute(release, [provider], options);
      if (action === 'detach-and-release' && (await this.#detach({ attachment }, options))) return;
      await this.#call({ service: provider.name, action: 'release' }, options, allocation.undo);
    });
    // The rollback calls the provider only after it found no wire.
    if (provider.isRefusal(error) && incomplete?.call.service === provider.name) known.recordRefused(attachment);
    if (incomplete) await this.#settle(release, incomplete);
    return incomplete;
  }

  /** An ADD has succeeded. */
  async added(attachment: Attachment, held: readonly AllocatedAddress[]): Promise<void> {
    const { known, journal, nodeAddresses } = this.#options;
    // The node's record has the addresses that podwire-ipam gave to its attachments.
    if (!nodeAddresses.recorded(attachment)?.allocation) known.record(attachment, held);
    await journal.added(attachment);
  }

  /**
   * Completes the pending release of an earlier ADD or DEL, so that ADD starts without leftovers. ADD calls it in its place in the
   * queue.
   * @throws Failure of the release; nothing is allocated then
   */
  async complete(attachment: Attachment, limits: Limits): Promise<void> {
    const options = { limitsOf: () => limits };
    const entry = this.#options.journal.get(attachment);
    let incomplete: IncompleteRelease | undefined;
    if (entry) incomplete = await this.#replay(entry, options);
    else if (this.#isLeftToRecord(attachment))
      incomplete = await this.#attempt(() => this.#detach({ attachment }, options));
    if (!incomplete) return;
    const { code, message, details } = incomplete.failure;
    throw new Failure(code, `the pending release of an earlier ADD or DEL of this attachment failed: ${message}`, {
      details,
      cause: incomplete.failure,
    });
  }

  /**
   * Executes a journal entry in the attachment's queue and removes it when done. Uses the attachment's entry of that moment: it
   * may have changed while waiting in the queue.
   * @returns undefined when done or when there is no entry any more
   */
  replay({ attachment }: JournalEntry, options: ReleaseOptions): Promise<IncompleteRelease | undefined> {
    const { journal, queue } = this.#options;
    const work = async () => {
      const entry = journal.get(attachment);
      return entry && this.#replay(entry, options);
    };
    return withAttachment(attachment, () => queue.run({ command: 'REPLAY', attachment }, work));
  }

  /**
   * Discards an attachment's journal entry without executing it. Waits in the attachment's queue for a release in flight,
   * which may complete the entry first. Idempotent.
   * @param cancel - fires when the caller disconnects; steps not started by then are skipped
   * @returns the discarded entry; undefined if there is none
   * @throws Failure STATE_IO if earlier entries cannot be read; CANCELLED
   */
  discard(attachment: Attachment, cancel: AbortController): Promise<JournalEntry | undefined> {
    const { journal, providers, queue } = this.#options;
    const work = async () => {
      const entry = journal.get(attachment);
      if (entry) await journal.discard(entry, providers.typesOf(entry));
      return entry;
    };
    return withAttachment(attachment, () => queue.run({ command: 'DISCARD', attachment, cancel }, work));
  }

  async #replay(entry: JournalEntry, options: ReleaseOptions): Promise<IncompleteRelease | undefined> {
    const { journal, providers } = this.#options;
    const incomplete = await this.#attempt(() => this.#execute(entry, providers.holding(entry), options));
    if (!incomplete) await journal.done(entry.attachment);
    return incomplete;
  }

  /** @param providers - may hold the addresses; the allocation is the first one's */
  async #execute(
    { attachment, action, held, netns }: Release,
    providers: readonly AddressProvider[],
    options: ReleaseOptions,
  ): Promise<void> {
    if (action === 'detach-and-release' && (await this.#detach({ attachment, netns }, options))) return;
    if (action === 'release-unless-attached' && (await this.#isAttached(attachment, options))) return;
    const remaining = action === 'detach-and-release' ? 'release' : action;
    for (const [index, provider] of providers.entries()) {
      const ownHeld = index === 0 ? held : undefined;
      await this.#call({ service: provider.name, action: remaining }, options, (limits) =>
        provider.release(attachment, ownHeld, limits),
      );
    }
  }

  /** @returns whether the node's record has the addresses; it returns them in the background */
  async #detach(detachment: Detachment, options: ReleaseOptions): Promise<boolean> {
    const { dataplane, nodeAddresses } = this.#options;
    const isRecorded = nodeAddresses.recorded(detachment.attachment)?.allocation !== undefined;
    await this.#call({ service: 'dataplane', action: 'detach-and-release' }, options, (limits) =>
      dataplane.detachPod(detachment, limits),
    );
    return isRecorded;
  }

  #isAttached(attachment: Attachment, options: ReleaseOptions): Promise<boolean> {
    return this.#call({ service: 'dataplane', action: 'release-unless-attached' }, options, (limits) =>
      this.#options.dataplane.isAttached(attachment, limits),
    );
  }

  /** @throws IncompleteRelease */
  async #call<Value>(
    call: ServiceCall,
    { limitsOf, skip }: ReleaseOptions,
    work: (limits: Limits) => Promise<Value>,
  ): Promise<Value> {
    try {
      if (skip?.has(call.service)) throw new Failure('UNREACHABLE', `${call.service} does not answer`);
      return await work(limitsOf(call.service));
    } catch (error) {
      throw new IncompleteRelease(call, failureOf(error, `${call.action} of an attachment`, this.#options.log));
    }
  }

  async #attempt(work: () => Promise<unknown>): Promise<IncompleteRelease | undefined> {
    try {
      await work();
      return undefined;
    } catch (error) {
      if (error instanceof IncompleteRelease) return error;
      throw error;
    }
  }

  /** Keeps a release that is incomplete, or removes the attachment's journal entry when the journal has nothing left to do. */
  async #settle(release: Release, incomplete: IncompleteRelease | undefined): Promise<void> {
    const { attachment } = release;
    const isDone =
      !incomplete ||
      this.#isLeftToRecord(attachment) ||
      (this.#wasRefused(attachment) && isPermanentRefusal(incomplete.failure));
    if (isDone) return this.#options.journal.done(attachment);
    const { call, failure } = incomplete;
    return this.#persist({ ...release, action: call.action, reason: tracedMessage(failure) });
  }

  /** Whether a delegate rejected the ADD. The entry may be of an earlier process that saw it; a later ADD would have removed it. */
  #wasRefused(attachment: Attachment): boolean {
    const { known, journal } = this.#options;
    return known.wasRefused(attachment) || journal.get(attachment)?.refused === true;
  }

  /** Whether the dataplane completes the detach of an attachment and returns its addresses. */
  #isLeftToRecord(attachment: Attachment): boolean {
    const recorded = this.#options.nodeAddresses.recorded(attachment);
    return recorded?.allocation !== undefined && recorded.isDetaching;
  }

  /**
   * Writes a pending release to the node's journal. Keeps only the latest entries whose IPAM plugin rejected both the ADD and the
   * DEL: by CNI it holds nothing then, and each attempt to start a pod would add an entry.
   */
  async #persist(pending: PendingRelease): Promise<void> {
    const { journal, providers, log } = this.#options;
    const isRefused = this.#wasRefused(pending.attachment);
    await journal.add({ ...pending, ...(isRefused && { refused: true }) });
    if (!isRefused) return;
    const refused = journal.entries().filter((entry) => entry.refused);
    for (const entry of refused.slice(0, -MAX_REFUSED_COUNT)) {
      await journal.discard(entry, providers.typesOf(entry)).catch((error: unknown) => {
        failureOf(error, 'discarding an entry', log);
      });
    }
  }
}

/**
 * An error as a Failure, so that the caller can continue. Logs a defect.
 * @param what - names the work in the log
 */
export function failureOf(error: unknown, what: string, log: Logger): Failure {
  if (error instanceof Failure) return error;
  log.error({ err: error }, `defect: ${what}`);
  return new Failure('INTERNAL', 'internal error: see the log of podwire-node', { cause: error });
}

/**
 * Timeout of a call in two cases: a rollback calls a service that the ADD timed out on, or the process is stopping. In
 * milliseconds. Enough for a running service; the journal retries.
 */
const UNRESPONSIVE_SERVICE_TIMEOUT_MS = 500;

/** The clock, and the end of the process for work without a caller. */
export interface ProcessEnd {
  /** Fires when the grace period for running commands is over. Releases without a caller are then left to the journal. */
  readonly ending: AbortSignal;
  readonly clock: Clock;
}

/**
 * Limits of a service call that continues after its caller disconnects. It is cancelled when the process ends; a call
 * started later has {@link UNRESPONSIVE_SERVICE_TIMEOUT_MS}.
 */
export function limitsAfterDisconnect(limits: Limits, { ending, clock }: ProcessEnd): Limits {
  if (!ending.aborted) return { ...limits, signal: ending };
  const lastMs = Math.min(limits.deadlineMs, clock.nowMs() + UNRESPONSIVE_SERVICE_TIMEOUT_MS);
  return { ...limits, deadlineMs: lastMs, signal: new AbortController().signal };
}

/** Dependencies of the rollback of an ADD. */
export interface UndoDeps extends ProcessEnd {
  readonly releases: Releases;
  /** Timeout of the rollback, in milliseconds, in addition to the ADD's own. */
  readonly cleanUpTimeoutMs: number;
}

/**
 * Rolls back a failed ADD within the clean-up timeout. Unfinished steps stay pending, as a runtime need not send a DEL
 * after a failed ADD.
 * @returns the error for ADD to throw: its own, with the failure of the rollback if there is one
 */
export async function undo(failedAdd: FailedAdd, limits: Limits, deps: UndoDeps): Promise<unknown> {
  const { error } = failedAdd;
  // ADD has not changed anything. The attachment's addresses are an earlier ADD's, and a pod may use it.
  if (error instanceof Failure && error.code === 'REQUEST_DENIED') return error;
  const incomplete = await deps.releases.undo(failedAdd, { limitsOf: rollbackLimits(error, limits, deps) });
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
