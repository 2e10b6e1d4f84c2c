import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { withAttachment } from '@podwire/shared/runtime/log';

import type { JournalEntry } from '../journal/entry.js';
import type { Turns } from '../requests/attachment-queue.js';
import type { CommandTools, Tools } from './context.js';
import { settle, type SettleOptions, type Unsettled } from './release.js';

export interface SettleEntryOptions extends SettleOptions {
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
