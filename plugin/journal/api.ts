import { formatAttachment, parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { JournalEntry } from './entry.js';
import type { Journal } from './journal.js';
import type { Replay } from './replay.js';

/** Where people, and podwirectl for them, look at the journal. */
export interface JournalDesk {
  /**
   * Pending releases, oldest first, as JSON: `{"entries":[{"attachment", "todo", "order", "since", "reason",
   * "lastFault", "givers", "held":[{"address","sequenceNumber"}]}], "unreadable":[{"path","fault"}], "fault"}`.
   *
   * - `lastFault`: error of the last attempt, null before one
   * - `givers`: IPAM plugins that the addresses return to
   * - `held`: the allocation to release, null if unknown
   * - `unreadable`: damaged entries and those of another release, which are not executed
   * - `fault`: why a restart could lose or revive an entry, else null
   */
  text(): string;
  /** Does at once what the journal says. @returns when each entry was tried once; never rejects */
  retry(): Promise<void>;
  /**
   * Discards one entry without executing it.
   * @param request - JSON: `{"attachment"}`, as {@link JournalDesk.text} has it
   * @param cancel - fires when the caller disconnects
   * @returns JSON: `{"discarded", "fault"}`, the entry and the fault as {@link JournalDesk.text} has them
   * @throws Failure INVALID_REQUEST; ATTACHMENT_NOT_FOUND if there is no such entry; STATE_IO, CANCELLED
   */
  discard(request: string, cancel: AbortController): Promise<string>;
}

interface JournalDeskOptions {
  readonly journal: Journal;
  readonly replay: Replay;
  /** Names of the IPAM plugins that an entry's addresses go back to. */
  readonly giversOf: (entry: JournalEntry) => readonly string[];
  /**
   * Strikes an entry out undone, in the attachment's turn.
   * @returns undefined where there is none
   */
  readonly discard: (attachment: Attachment, cancel: AbortController) => Promise<JournalEntry | undefined>;
}

const DISCARD_REQUEST = z.strictObject({ attachment: z.string() });

export function journalDesk(options: JournalDeskOptions): JournalDesk {
  const { journal, replay, discard } = options;
  return {
    text: () => {
      const entries = journal.entries().map((entry) => told(entry, options));
      return `${JSON.stringify({ entries, unreadable: journal.unreadable(), fault: journal.fault ?? null })}\n`;
    },
    retry: () => replay.hurry(),
    discard: async (request, cancel) => {
      const attachment = attachmentIn(request);
      const entry = await discard(attachment, cancel);
      if (!entry)
        throw new Failure(
          'ATTACHMENT_NOT_FOUND',
          `the journal has no entry of ${formatAttachment(attachment)}: it was done or discarded, or never was there`,
        );
      return `${JSON.stringify({ discarded: told(entry, options), fault: journal.fault ?? null })}\n`;
    },
  };
}

function attachmentIn(request: string): Attachment {
  const parsed = DISCARD_REQUEST.safeParse(parseJson(request));
  const attachment = parsed.success ? parseAttachment(parsed.data.attachment) : undefined;
  if (attachment) return attachment;
  throw new Failure(
    'INVALID_REQUEST',
    'send {"attachment": "<network>/<container ID>/<interface>"}, as GET /journal has it',
  );
}

function told(entry: JournalEntry, { replay, giversOf }: JournalDeskOptions): object {
  const { attachment, todo, order, sinceMs, reason, held } = entry;
  const allocation = held?.map(({ address, sequenceNumber }) => ({ address, sequenceNumber: String(sequenceNumber) }));
  return {
    attachment: formatAttachment(attachment),
    todo,
    order,
    since: new Date(sinceMs).toISOString(),
    reason,
    lastFault: replay.faultOf(entry) ?? null,
    givers: giversOf(entry),
    held: allocation ?? null,
  };
}
