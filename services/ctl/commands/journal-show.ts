import { Failure } from '@podwire/shared/failure/failure';

import { text } from '../command-line/forms.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { momentAndAge } from '../output/words.js';

const WHICH: Positional<string> = {
  form: text('ENTRY'),
  about: 'the attachment, its container ID, or the order, as "journal list" prints them',
  presence: 'required',
};

export const journalShow: Verb = {
  name: 'journal show',
  about: 'everything about one entry of the journal',
  positionals: [WHICH],
  run: async (input, { plugin, clock }) => {
    const which = input.at(WHICH);
    const { entries } = await plugin.journal();
    const isMeant = ({ order, attachment }: (typeof entries)[number]): boolean =>
      String(order) === which || attachment === which || attachment.split('/')[1] === which;
    const found = entries.filter(isMeant);
    if (found.length === 0)
      throw new Failure(
        'ATTACHMENT_NOT_FOUND',
        `the journal has no entry "${which}"; "podwirectl journal list" shows them`,
      );
    return {
      sections: found.map((entry) => ({
        kind: 'fields' as const,
        fields: [
          ['Attachment', entry.attachment],
          ['Order', String(entry.order)],
          ['To do', entry.todo],
          ['Since', momentAndAge(new Date(entry.since), clock.nowMs())],
          ['Written as', entry.reason],
          ['Last attempt', entry.lastFault ?? 'none yet'],
          ['Gives back', allocations(entry.held)],
        ] as const,
      })),
      data: () => ({ entries: found }),
    };
  },
};

function allocations(held: readonly { readonly address: string; readonly sequenceNumber: string }[] | null): string {
  if (held === null) return 'whatever the attachment holds';
  return held.map(({ address, sequenceNumber }) => `${address} (sequence ${sequenceNumber})`).join(', ');
}
