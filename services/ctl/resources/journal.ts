import { Failure } from '@podwire/shared/failure/failure';

import type { Journal, JournalEntry } from '../clients/plugin-socket.js';
import { text } from '../command-line/forms.js';
import type { Positional } from '../command-line/verb.js';
import type { Fields } from '../output/report.js';
import { momentAndAge } from '../output/words.js';

export const WHICH_ENTRY: Positional<string> = {
  form: text('ENTRY'),
  about: 'the attachment, its container ID, or the order, as "journal list" prints them',
  presence: 'required',
};

/**
 * The entries that a name stands for: several where it is the ID of a container with several interfaces.
 * @throws Failure ATTACHMENT_NOT_FOUND where there is none
 */
export function entriesNamed(which: string, { entries }: Journal): readonly JournalEntry[] {
  const found = entries.filter(
    ({ order, attachment }) => String(order) === which || attachment === which || attachment.split('/')[1] === which,
  );
  if (found.length > 0) return found;
  throw new Failure(
    'ATTACHMENT_NOT_FOUND',
    `the journal has no entry "${which}"; "podwirectl journal list" shows them`,
  );
}

export function entryFields(entry: JournalEntry, nowMs: number): Fields {
  return {
    kind: 'fields',
    fields: [
      ['Attachment', entry.attachment],
      ['Order', String(entry.order)],
      ['To do', entry.todo],
      ['Since', momentAndAge(new Date(entry.since), nowMs)],
      ['Written as', entry.reason],
      ['Last attempt', entry.lastFault ?? 'none yet'],
      ['Gives back', allocations(entry.held)],
      ...(entry.givers ? [['To', entry.givers.join(', ')] as const] : []),
    ],
  };
}

function allocations(held: JournalEntry['held']): string {
  if (held === null) return 'whatever the attachment holds';
  return held.map(({ address, sequenceNumber }) => `${address} (sequence ${sequenceNumber})`).join(', ');
}
