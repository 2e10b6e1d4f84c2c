import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { withSpan } from '@podwire/shared/runtime/span';

import { NS_PER_MS } from './request.js';

/** A command that wants its turn. */
export interface Turn {
  readonly command: 'ADD' | 'DEL' | 'CHECK' | 'GC' | 'REPLAY' | 'DISCARD';
  readonly attachment: Attachment;
  /** When the runtime started the command, in epoch nanoseconds, where it is known. */
  readonly startedNs: bigint | undefined;
  /** When the command's answer is of no use any more, in epoch milliseconds. */
  readonly deadlineMs: number;
  /** Ends the command early. */
  readonly cancel: AbortController;
}

interface Queue {
  /** Settles when the last in the queue has finished. */
  tail: Promise<unknown>;
  waiting: number;
  /** The ADDs among them. */
  readonly adds: Set<AbortController>;
  readonly attachment: Attachment;
}

interface AddEnd {
  readonly attachment: Attachment;
  readonly atMs: number;
  /** Its place among the ADDs that have ended. */
  readonly order: number;
}

/** A moment: by the clock, and by the ADDs that had ended, which no clock that is set back makes earlier. */
export interface Moment {
  /** Epoch milliseconds. */
  readonly atMs: number;
  readonly endedCount: number;
}

/** Nobody waits longer for a command than the shim does (kOverallDeadlineMs, shim/src/protocol.h). */
const REMEMBERED_MS = 120_000;

/**
 * One command at a time for each attachment, in the order in which they arrive.
 *
 * More than a lock:
 * - A DEL means that the runtime abandoned the ADDs before it. It cancels them, in flight or queued, and runs after
 *   their rollback.
 * - An ADD can arrive after a DEL that was started later, if both waited for the plugin to restart. It would wire a pod
 *   that is never deleted, so it is rejected. The start times of the runtime's processes decide.
 * - A command whose deadline passed in the queue does nothing, unless it is a DEL.
 * - The runtime makes GC's list before GC starts. An attachment added since is not garbage, although the list lacks it.
 */
export class Turns {
  readonly #clock: Clock;
  readonly #queues = new Map<string, Queue>();
  /** When the latest DEL of an attachment was started; the oldest entry first. */
  readonly #deleted = new Map<string, { readonly startedNs: bigint; readonly atMs: number }>();
  /** When the latest ADD of an attachment ended; the oldest entry first. */
  readonly #added = new Map<string, AddEnd>();
  /** How many ADDs have ended. */
  #endedCount = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Runs the work when it is the command's turn.
   * @throws what the work throws; Failure DEADLINE_EXCEEDED or CANCELLED when it was not begun
   */
  async take<Result>(turn: Turn, work: () => Promise<Result>): Promise<Result> {
    const key = formatAttachment(turn.attachment);
    const queue: Queue = this.#queues.get(key) ?? {
      tail: Promise.resolve(),
      waiting: 0,
      adds: new Set(),
      attachment: turn.attachment,
    };
    this.#queues.set(key, queue);
    this.#noteOrder(key, { turn, queue });

    const { tail } = queue;
    const done = withSpan('podwire.plugin.turn_wait', {}, () => tail).then(() => this.#begin(turn, work));
    queue.tail = done.catch(() => undefined);
    queue.waiting++;
    try {
      return await done;
    } finally {
      if (queue.adds.delete(turn.cancel)) this.#rememberAdd(key, turn.attachment);
      if (--queue.waiting === 0) this.#queues.delete(key);
    }
  }

  /** Converts a caller's start time, in epoch milliseconds by the caller's clock, to a moment. */
  momentOf(atMs: number): Moment {
    return { atMs, endedCount: this.#endedCount };
  }

  /** The attachments whose ADD waits, is under way, or ended at that moment or later; for two minutes. */
  addedSince({ atMs: sinceMs, endedCount }: Moment): readonly Attachment[] {
    const underWay = [...this.#queues.values()].filter(({ adds }) => adds.size > 0);
    const ended = [...this.#added.values()].filter(({ atMs, order }) => atMs >= sinceMs || order > endedCount);
    return [...underWay, ...ended].map(({ attachment }) => attachment);
  }

  #begin<Result>({ command, deadlineMs, cancel }: Turn, work: () => Promise<Result>): Promise<Result> {
    // A DEL is worth doing also when its caller is gone, and however late: what it has no time for, it writes down.
    if (command === 'DEL') return work();
    cancel.signal.throwIfAborted();
    if (this.#clock.nowMs() >= deadlineMs) {
      throw new Failure(
        'DEADLINE_EXCEEDED',
        `${command} was not started: its time ran out while other commands of the attachment ran`,
      );
    }
    return work();
  }

  #noteOrder(key: string, { turn, queue }: { readonly turn: Turn; readonly queue: Queue }): void {
    const { command, startedNs, cancel } = turn;
    switch (command) {
      case 'DEL':
        for (const add of queue.adds) add.abort(new Overtaken());
        if (startedNs !== undefined) this.#rememberDel(key, startedNs);
        break;
      case 'ADD':
        if (startedNs !== undefined && this.#isOvertaken(key, startedNs)) cancel.abort(new Overtaken());
        else queue.adds.add(cancel);
        break;
      case 'CHECK':
      case 'GC':
      case 'REPLAY':
      case 'DISCARD':
        break;
    }
  }

  /** Whether a DEL of the attachment was started later. A start time in the future means that the clock was set back; it is ignored. */
  #isOvertaken(key: string, startedNs: bigint): boolean {
    const deletedNs = this.#deleted.get(key)?.startedNs ?? 0n;
    return startedNs < deletedNs && deletedNs < BigInt(this.#clock.nowMs() + 1) * NS_PER_MS;
  }

  #rememberAdd(key: string, attachment: Attachment): void {
    const atMs = this.#clock.nowMs();
    forgetOld(this.#added, atMs);
    this.#added.delete(key);
    this.#added.set(key, { attachment, atMs, order: ++this.#endedCount });
  }

  #rememberDel(key: string, startedNs: bigint): void {
    const atMs = this.#clock.nowMs();
    const before = this.#deleted.get(key)?.startedNs ?? 0n;
    forgetOld(this.#deleted, atMs);
    this.#deleted.delete(key);
    this.#deleted.set(key, { startedNs: startedNs > before ? startedNs : before, atMs });
  }
}

/** Drops what is too old to matter from a map whose oldest entry comes first. */
function forgetOld(entries: Map<string, { readonly atMs: number }>, nowMs: number): void {
  for (const [key, { atMs }] of entries) {
    if (nowMs - atMs < REMEMBERED_MS) break;
    entries.delete(key);
  }
}

/** Why an ADD ends that a DEL of its attachment came after. */
export class Overtaken extends Failure {
  constructor() {
    super('CANCELLED', 'ADD was given up: a DEL of the same attachment came after it');
  }
}
