import { counted } from '@podwire/shared/words/counted';

import type { Verb } from '../command-line/verb.js';
import { DONE, FAILED } from '../exit-codes.js';
import { sentence } from '../output/report.js';
import { journalReport } from './journal-list.js';

export const journalRetry: Verb = {
  name: 'journal retry',
  about: 'try everything in the journal now, without waiting for its next turn, and show what is left',
  details: 'Exit code 1: something is left.',
  run: async (_, { plugin, clock }) => {
    const before = await plugin.journal();
    const after = await plugin.retryJournal();
    const isLeft = (order: number): boolean => after.entries.some((entry) => entry.order === order);
    const done = before.entries.filter(({ order }) => !isLeft(order)).length;
    const report = journalReport(after, clock.nowMs());
    const told = after.entries.length === 0 ? [] : report.sections;
    return {
      ...report,
      sections: [sentence(`Done: ${done} of ${counted(before.entries.length, 'entry', 'entries')}.`), ...told],
      hints: after.entries.length > 0 ? ['what is left is tried again by itself'] : [],
      exitCode: after.entries.length > 0 ? FAILED : DONE,
    };
  },
};
