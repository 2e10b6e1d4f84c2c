import type { Journal } from '../clients/plugin-socket.js';
import type { Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG } from '../exit-codes.js';
import { sentence, type Report, type Table } from '../output/report.js';
import { age } from '../output/words.js';

export const journalList: Verb = {
  name: 'journal list',
  about: 'what DELs on this node could not do yet, and is done as soon as possible',
  details: 'Exit code 4: it cannot be kept, and a restart could lose some of it; or some of it cannot be read.',
  run: async (_, { plugin, clock }) => journalReport(await plugin.journal(), clock.nowMs()),
};

/** The journal, oldest first. */
export function journalReport(journal: Journal, nowMs: number): Report {
  const { entries, unreadable, fault } = journal;
  return {
    sections: [
      {
        kind: 'table',
        columns: [{ right: 'ORDER' }, 'AGE', 'TO DO', 'ADDRESSES', 'ATTACHMENT', 'WHY'],
        rows: entries.map(({ order, since, todo, held, lastFault, reason, attachment }) => [
          String(order),
          age(new Date(since), nowMs),
          todo,
          held?.map(({ address }) => address).join(', ') ?? 'all it holds',
          attachment,
          lastFault ?? reason,
        ]),
        none: 'Nothing waits.',
      },
      ...(unreadable.length === 0 ? [] : [unreadableTable(unreadable)]),
      ...(fault === null ? [] : [sentence(`Not safe: ${fault}`)]),
    ],
    hints: [...(entries.length > 0 ? [AGAIN] : []), ...(unreadable.length > 0 ? [UNREADABLE] : [])],
    data: () => ({ entries, unreadable, fault }),
    exitCode: fault === null && unreadable.length === 0 ? DONE : FOUND_WRONG,
  };
}

const AGAIN =
  'it is tried again by itself; at once: podwirectl journal retry; what can never be done: podwirectl journal discard';

const UNREADABLE =
  'what cannot be read is done by a podwire-plugin of the release that wrote it; or podwirectl gc finds what its pod holds, and then the file may be removed';

function unreadableTable(unreadable: Journal['unreadable']): Table {
  const rows = unreadable.map(({ path, fault }) => [path, fault]);
  return { kind: 'table', title: 'Cannot be read', columns: ['FILE', 'WHY'], rows, none: '' };
}
