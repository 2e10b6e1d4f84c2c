import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { NS_PER_MS } from '@podwire/shared/runtime/wall-clock';
import { withSpan } from '@podwire/shared/telemetry/span';

/** A command for the queue. */
export interface QueuedCommand {
  readonly command: 'ADD' | 'DEL' | 'CHECK' | 'GC' | 'REPLAY' | 'DISCARD';
  readonly attachment: Attachment;
  /** When the runtime started the command, in epoch nanoseconds, if known. */
  readonly startedNs: bigint | undefined;
  /** Deadline in epoch milliseconds. */
  readonly deadlineMs: number;
  /** Cancels the command. */
  readonly cancel: AbortController;
}

/** A command without a start time, a deadline or a caller may omit them. */
type QueueableCommand = Pick<QueuedCommand, 'command' | 'attachment'> & Partial<QueuedCommand>;

/** The commands of an attachment that are queued or in flight. */
interface PendingCommands {
  /** Settles when the last of them has ended. */
  tail: Promise<unknown>;
  count: number;
  /** Controllers of the ADDs among them. */
  readonly adds: Set<AbortController>;
  readonly attachment: Attachment;
}

interface AddEnd {
  readonly attachment: Attachment;
  readonly atMs: number;
  /** Sequence number among all ADDs that have ended. */
  readonly order: number;
}

/** A point in time, by the clock and by the number of ADDs that had ended. The latter is robust against a clock that is set back. */
export interface QueuePosition {
  /** Epoch milliseconds. */
  readonly atMs: number;
  readonly endedCount: number;
}

/** How long ended commands matter: as long as the shim waits for an answer (kOverallDeadlineMs, shim/src/protocol.h). */
const HISTORY_MS = 120_000;

/**
 * Runs one command at a time for each attachment, in the order of arrival.
 *
 * More than a lock:
 * - A DEL means that the runtime abandoned the ADDs before it. It cancels them, queued or in flight, and runs after their
 *   rollback.
 * - An ADD can arrive after a DEL that the runtime started later, if both waited for the plugin to restart. Such an ADD is
 *   cancelled, as its pod would never be deleted. The start times of the shim's processes decide.
 * - A command whose deadline passed in the queue does nothing, except a DEL.
 * - GC needs the ADDs since the runtime made GC's list: their attachments are missing from the list but are not garbage.
 */
export class AttachmentQueue {
  readonly #clock: Clock;
  readonly #pending = new Map<string, PendingCommands>();
  /** The latest start time of a DEL, by attachment; oldest entry first. */
  readonly #deleted = new Map<string, { readonly startedNs: bigint; readonly atMs: number }>();
  /** The last ADD that ended, by attachment; oldest entry first. */
  readonly #added = new Map<string, AddEnd>();
  #endedCount = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Runs the work after all earlier commands of the attachment.
   * @throws errors of the work; Failure DEADLINE_EXCEEDED, or the reason of `cancel`, if the work was not started
   */
  async run<Result>(command: QueueableCommand, work: () => Promise<Result>): Promise<Result> {
    const defaults = { startedNs: undefined, deadlineMs: Number.POSITIVE_INFINITY, cancel: new AbortController() };
    const queued: QueuedCommand = { ...defaults, ...command };
    const key = formatAttachment(queued.attachment);
    const pending: PendingCommands = this.#pending.get(key) ?? {
      tail: Promise.resolve(),
      count: 0,
      adds: new Set(),
      attachment: queued.attachment,
    };
    this.#pending.set(key, pending);
    this.#cancelSuperseded(key, { queued, pending });

    const { tail } = pending;
    const done = withSpan('podwire.plugin.queue_wait', {}, () => tail).then(() => this.#begin(queued, work));
    pending.tail = done.catch(() => undefined);
    pending.count++;
    try {
      return await done;
    } finally {
      if (pending.adds.delete(queued.cancel)) this.#recordAdd(key, queued.attachment);
      if (--pending.count === 0) this.#pending.delete(key);
    }
  }

  /** @param atMs - when the caller started, in epoch milliseconds */
  positionAt(atMs: number): QueuePosition {
    return { atMs, endedCount: this.#endedCount };
  }

  /** Attachments whose ADD is queued, in flight, or ended at that position or later, for up to {@link HISTORY_MS}. */
  addedSince({ atMs: sinceMs, endedCount }: QueuePosition): readonly Attachment[] {
    const inFlight = [...this.#pending.values()].filter(({ adds }) => adds.size > 0);
    const ended = [...this.#added.values()].filter(({ atMs, order }) => atMs >= sinceMs || order > endedCount);
    return [...inFlight, ...ended].map(({ attachment }) => attachment);
  }

  #begin<Result>({ command, deadlineMs, cancel }: QueuedCommand, work: () => Promise<Result>): Promise<Result> {
    // A DEL always runs, even after its deadline or without a caller: it writes what it cannot complete to the journal.
    if (command === 'DEL') return work();
    cancel.signal.throwIfAborted();
    if (this.#clock.nowMs() >= deadlineMs) {
      throw new Failure(
        'DEADLINE_EXCEEDED',
        `${command} was not started: its deadline passed while it waited for other commands of the attachment`,
      );
    }
    return work();
  }

  #cancelSuperseded(
    key: string,
    { queued, pending }: { readonly queued: QueuedCommand; readonly pending: PendingCommands },
  ): void {
    const { command, startedNs, cancel } = queued;
    switch (command) {
      case 'DEL':
        for (const add of pending.adds) add.abort(new Superseded());
        if (startedNs !== undefined) this.#recordDel(key, startedNs);
        break;
      case 'ADD':
        if (startedNs !== undefined && this.#isSuperseded(key, startedNs)) cancel.abort(new Superseded());
        else pending.adds.add(cancel);
        break;
      case 'CHECK':
      case 'GC':
      case 'REPLAY':
      case 'DISCARD':
        break;
    }
  }

  /** Whether a DEL of the attachment was started later. A start time in the future is ignored: the clock was set back. */
  #isSuperseded(key: string, startedNs: bigint): boolean {
    const deletedNs = this.#deleted.get(key)?.startedNs ?? 0n;
    return startedNs < deletedNs && deletedNs < BigInt(this.#clock.nowMs() + 1) * NS_PER_MS;
  }

  #recordAdd(key: string, attachment: Attachment): void {
    const atMs = this.#clock.nowMs();
    dropExpired(this.#added, atMs);
    this.#added.delete(key);
    this.#added.set(key, { attachment, atMs, order: ++this.#endedCount });
  }

  #recordDel(key: string, startedNs: bigint): void {
    const atMs = this.#clock.nowMs();
    const before = this.#deleted.get(key)?.startedNs ?? 0n;
    dropExpired(this.#deleted, atMs);
    this.#deleted.delete(key);
    this.#deleted.set(key, { startedNs: startedNs > before ? startedNs : before, atMs });
  }
}

/** Drops entries older than {@link HISTORY_MS} from a map whose oldest entry comes first. */
function dropExpired(entries: Map<string, { readonly atMs: number }>, nowMs: number): void {
  for (const [key, { atMs }] of entries) {
    if (nowMs - atMs < HISTORY_MS) break;
    entries.delete(key);
  }
}

/** Why an ADD is cancelled by a DEL of its attachment. */
export class Superseded extends Failure {
  constructor() {
    super('CANCELLED', 'ADD was cancelled: a later DEL of the same attachment superseded it');
  }
}

/** Why a command ends when the process stops: the next process executes it. */
export class ProcessStopping extends Failure {
  /** @param reason - why the command fails rather than succeeds while the process stops */
  constructor(reason?: string) {
    const text = 'podwire-node is stopping; repeat the call for the next process';
    super('CANCELLED', reason === undefined ? text : `${text}: ${reason}`);
  }
}
