import type { Attachment } from '@podwire/shared/attachment/attachment';
import { withAttachment } from '@podwire/shared/runtime/log';

import type { JournalEntry } from '../journal/entry.js';
import type { Turns } from '../requests/attachment-queue.js';
import type { Tools } from './context.js';
import { giverNamesOf } from './release.js';

export interface DiscardOptions {
  readonly turns: Turns;
  /** Fires when nobody waits for it any more; what was not begun by then stays. */
  readonly cancel: AbortController;
}

/**
 * Gives up what the journal says of an attachment: nobody does it any more. In the attachment's turn, so that what is being settled
 * is over by then: where it was done, there is nothing to give up. Idempotent.
 * @returns the entry that is gone; undefined where there is none
 * @throws Failure STATE_IO, where what earlier processes left is not known; CANCELLED
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
