import type { Verb } from '../command-line/verb.js';
import { entriesNamed, entryFields, WHICH_ENTRY } from '../resources/journal.js';

export const journalShow: Verb = {
  name: 'journal show',
  about: 'everything about one entry of the journal',
  positionals: [WHICH_ENTRY],
  run: async (input, { plugin, clock }) => {
    const found = entriesNamed(input.at(WHICH_ENTRY), await plugin.journal());
    return {
      sections: found.map((entry) => entryFields(entry, clock.nowMs())),
      data: () => ({ entries: [...found] }),
    };
  },
};
