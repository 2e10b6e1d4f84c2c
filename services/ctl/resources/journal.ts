import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Journal, JournalEntry } from '../clients/plugin-socket.js';
import { text } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { DONE, FAILED, FOUND_WRONG, sentence, type Fields, type Report, type Table } from '../output/report.js';
import { age, momentAndAge } from '../output/words.js';

const WHICH_ENTRY: Positional<string> = {
  form: text('ENTRY'),
  about: 'the attachment, its container ID, or the order, as "journal list" prints them',
  presence: 'required',
};

/**
 * The entries that a name stands for: several where it is the ID of a container with several interfaces.
 * @throws Failure ATTACHMENT_NOT_FOUND where there is none
 */
function entriesNamed(which: string, { entries }: Journal): readonly JournalEntry[] {
  const found = entries.filter(
    ({ order, attachment }) => String(order) === which || attachment === which || attachment.split('/')[1] === which,
  );
  if (found.length > 0) return found;
  throw new Failure(
    'ATTACHMENT_NOT_FOUND',
    `the journal has no entry "${which}"; "podwirectl journal list" shows them`,
  );
}

function entryFields(entry: JournalEntry, nowMs: number): Fields {
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

const PODWIRE_IPAM = 'podwire-ipam';

export const journalDiscard: Verb = {
  name: 'journal discard',
  about: 'give up an entry of the journal, so that it is not tried again',
  details: `For what can never be done, such as addresses of another IPAM plugin that refuses the configuration they were
given by. What the entry says is not done then: its addresses may stay held, and its wire stays where that is still
to be taken away. An attempt that is under way is waited for; where it succeeds, there is nothing to give up.
Exit code 4: it is discarded, and a restart of the plugin may bring it back.`,
  positionals: [WHICH_ENTRY],
  flags: [YES],
  examples: ['journal discard 7', 'journal discard k8s-pod-network/4f1c/eth0 --yes'],
  run: async (input, { plugin, clock }) => {
    const which = input.at(WHICH_ENTRY);
    const entry = onlyOne(which, entriesNamed(which, await plugin.journal()));
    if (!input.has(YES)) {
      const sections = [sentence(forfeit(entry, 'would be')), entryFields(entry, clock.nowMs())];
      const data = () => ({ entry });
      return unconfirmed({ sections, data }, input.typed({ positionals: [entry.attachment] }));
    }
    const { discarded, fault } = await plugin.discardEntry(entry.attachment);
    return {
      sections: [sentence(forfeit(discarded, 'is')), ...(fault === null ? [] : [sentence(`Not safe: ${fault}`)])],
      hints: remedies(discarded),
      data: () => ({ discarded, fault }),
      exitCode: fault === null ? DONE : FOUND_WRONG,
    };
  },
};

function onlyOne(which: string, found: readonly JournalEntry[]): JournalEntry {
  const [entry, ...others] = found;
  if (entry && others.length === 0) return entry;
  const names = found.map(({ attachment }) => attachment).join(', ');
  throw new Failure('INVALID_REQUEST', `"${which}" is ${found.length} entries; name one of ${names}`);
}

/** What is lost with an entry. */
function forfeit({ attachment, todo, held, givers }: JournalEntry, verb: 'is' | 'would be'): string {
  const addresses = held?.map(({ address }) => address).join(', ') ?? 'all that it holds';
  const from = givers ? ` of ${givers.join(' and ')}` : '';
  const wire = todo === 'detach-and-release' ? ', and its wire stays' : '';
  return `${attachment} ${verb} given up: its addresses${from} (${addresses}) may stay held${wire}.`;
}

/** By what else an operator may do what the entry said. */
function remedies({ attachment, todo, givers }: JournalEntry): string[] {
  const isPodwire = givers?.includes(PODWIRE_IPAM) ?? true;
  const others = (givers ?? []).filter((name) => name !== PODWIRE_IPAM);
  return [
    ...(todo === 'detach-and-release' ? [`its wire: podwirectl gc --network ${attachment.split('/')[0] ?? ''}`] : []),
    ...(isPodwire ? [`its addresses of ${PODWIRE_IPAM}: podwirectl release attachment ${attachment}`] : []),
    ...others.map((name) => `its addresses of ${name}: where ${name} keeps its records`),
  ];
}

export const journalList: Verb = {
  name: 'journal list',
  about: 'what DELs on this node could not do yet, and is done as soon as possible',
  details: 'Exit code 4: it cannot be kept, and a restart could lose some of it; or some of it cannot be read.',
  run: async (_, { plugin, clock }) => journalReport(await plugin.journal(), clock.nowMs()),
};

/** The journal, oldest first. */
function journalReport(journal: Journal, nowMs: number): Report {
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
      sections: [sentence(`Done: ${done} of ${formatCount(before.entries.length, 'entry', 'entries')}.`), ...told],
      hints: after.entries.length > 0 ? ['what is left is tried again by itself'] : [],
      exitCode: after.entries.length > 0 ? FAILED : DONE,
    };
  },
};

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
