import { formatAttachment } from '@podwire/shared/attachment/attachment';

import type { Journal } from './journal.js';
import type { Replay } from './replay.js';

/** Where people, and podwirectl for them, look at the journal. */
export interface JournalDesk {
  /**
   * What waits, oldest first, and whether that is safe, as JSON: `{"entries":[{"attachment", "todo", "order", "since", "reason",
   * "lastFault", "held":[{"address","sequenceNumber"}]}], "fault"}`. `lastFault` is what the last attempt met, null before one;
   * `held` the allocation that is meant, null where it is not known; `fault` why a restart could lose something, else null.
   */
  text(): string;
  /** Does at once what the journal says. @returns when each entry was tried once; never rejects */
  retry(): Promise<void>;
}

export function journalDesk(journal: Journal, replay: Replay): JournalDesk {
  return {
    text: () => `${JSON.stringify({ entries: entriesOf(journal, replay), fault: journal.fault ?? null })}\n`,
    retry: () => replay.hurry(),
  };
}

function entriesOf(journal: Journal, replay: Replay): object[] {
  return journal.entries().map((entry) => {
    const { attachment, todo, order, sinceMs, reason, held } = entry;
    const allocation = held?.map(({ address, sequenceNumber }) => ({
      address,
      sequenceNumber: String(sequenceNumber),
    }));
    return {
      attachment: formatAttachment(attachment),
      todo,
      order,
      since: new Date(sinceMs).toISOString(),
      reason,
      lastFault: replay.faultOf(entry) ?? null,
      held: allocation ?? null,
    };
  });
}
