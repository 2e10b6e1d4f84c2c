import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Journal, JournalEntry, PluginSocket } from '../clients/plugin-socket.js';
import { text } from '../command-line/forms.js';
import { ON_NODE, previewReport, YES } from '../command-line/options.js';
import { argument, type Verb } from '../command-line/verb.js';
import { DONE, FAILED, PROBLEM_FOUND, sentence, type Fields, type Report, type Table } from '../output/report.js';
import { age, momentAndAge } from '../output/words.js';

const ENTRY_ARGUMENT = argument(
  text('ENTRY'),
  'attachment, container ID or order of the entry, as "journal list" shows them',
  'required',
);

/**
 * The entries that the argument selects: several where it is the ID of a container with several interfaces.
 * @throws Failure ATTACHMENT_NOT_FOUND where no entry matches
 */
function findEntries(which: string, { entries }: Journal): readonly JournalEntry[] {
  const found = entries.filter(
    ({ order, attachment }) => String(order) === which || attachment === which || attachment.split('/')[1] === which,
  );
  if (found.length > 0) return found;
  throw new Failure(
    'ATTACHMENT_NOT_FOUND',
    `journal entry "${which}" not found; "podwirectl journal list" lists the entries`,
  );
}

function entryFields(entry: JournalEntry, nowMs: number): Fields {
  return {
    kind: 'fields',
    fields: [
      ['Attachment', entry.attachment],
      ['Order', String(entry.order)],
      ['Action', entry.action],
      ['Since', momentAndAge(new Date(entry.since), nowMs)],
      ['Recorded because', entry.reason],
      ['Last attempt', entry.lastFault ?? 'none yet'],
      ['Addresses', allocations(entry.held)],
      ['Providers', entry.providers.join(', ')],
    ],
  };
}

function allocations(held: JournalEntry['held']): string {
  if (held === null) return 'all addresses of the attachment';
  return held.map(({ address, sequenceNumber }) => `${address} (sequence ${sequenceNumber})`).join(', ');
}

const PODWIRE_IPAM = 'podwire-ipam';

export const journalDiscard: Verb = {
  name: 'journal discard',
  about: 'discard an entry of the journal, so that it is not retried',
  details: `For an entry that fails permanently, such as a release that another IPAM plugin refuses because its configuration has
changed. The action of a discarded entry is not executed: its addresses may stay allocated, and a wire that is not yet
removed stays. The command first waits for an attempt in flight; if that succeeds, there is nothing to discard.
Exit code 4: the entry is discarded, but a restart of the plugin may restore it.`,
  positionals: [ENTRY_ARGUMENT],
  flags: [YES],
  examples: ['journal discard 7', 'journal discard k8s-pod-network/4f1c/eth0 --yes'],
  options: [ON_NODE],
  run: async (input, { plugin, clock }) => {
    const which = input.at(ENTRY_ARGUMENT);
    const entry = singleEntry(which, findEntries(which, await (await plugin()).journal()));
    const execute = async () => discard(entry.attachment, await plugin());
    if (input.has(YES)) return execute();
    const sections = [sentence(discardText(entry, 'would be')), entryFields(entry, clock.nowMs())];
    const data = () => ({ entry });
    return previewReport({ sections, data }, input.toCommandLine({ positionals: [entry.attachment] }), execute);
  },
};

async function discard(attachment: string, plugin: PluginSocket): Promise<Report> {
  const { discarded, fault } = await plugin.discardEntry(attachment);
  return {
    sections: [
      sentence(discardText(discarded, 'is')),
      ...(fault === null ? [] : [sentence(`journal not durable: ${fault}`)]),
    ],
    hints: remedies(discarded),
    data: () => ({ discarded, fault }),
    exitCode: fault === null ? DONE : PROBLEM_FOUND,
  };
}

function singleEntry(which: string, found: readonly JournalEntry[]): JournalEntry {
  const [entry, ...furtherEntries] = found;
  if (entry && furtherEntries.length === 0) return entry;
  const names = found.map(({ attachment }) => attachment).join(', ');
  throw new Failure('INVALID_REQUEST', `"${which}" matches ${found.length} entries; use one of ${names}`);
}

/** The consequence of discarding an entry. */
function discardText({ attachment, action, held, providers }: JournalEntry, verb: 'is' | 'would be'): string {
  const addresses = held?.map(({ address }) => address).join(', ') ?? 'all addresses of the attachment';
  const wire = action === 'detach-and-release' ? ', and its wire stays' : '';
  return `${attachment} ${verb} discarded: its addresses of ${providers.join(' and ')} (${addresses}) may stay allocated${wire}`;
}

/** Commands with which an operator can execute the entry's action. */
function remedies({ attachment, action, providers }: JournalEntry): string[] {
  const otherProviders = providers.filter((name) => name !== PODWIRE_IPAM);
  return [
    ...(action === 'detach-and-release' ? [`its wire: podwirectl gc --network ${attachment.split('/')[0] ?? ''}`] : []),
    ...(providers.includes(PODWIRE_IPAM)
      ? [`its addresses of ${PODWIRE_IPAM}: podwirectl release attachment ${attachment}`]
      : []),
    ...otherProviders.map((name) => `its addresses of ${name}: release them in the records of ${name}`),
  ];
}

export const journalList: Verb = {
  name: 'journal list',
  about: 'the pending releases of DELs on this node, which the plugin retries',
  details:
    'Exit code 4: the journal cannot be persisted, so that a restart could lose entries; or an entry cannot be read.',
  options: [ON_NODE],
  run: async (_, { plugin, clock }) => journalReport(await (await plugin()).journal(), clock.nowMs()),
};

/** The journal, oldest first. */
function journalReport(journal: Journal, nowMs: number): Report {
  const { entries, unreadable, fault } = journal;
  return {
    sections: [
      {
        kind: 'table',
        columns: [{ right: 'ORDER' }, 'AGE', 'ACTION', 'ADDRESSES', 'ATTACHMENT', 'REASON'],
        rows: entries.map(({ order, since, action, held, lastFault, reason, attachment }) => [
          String(order),
          age(new Date(since), nowMs),
          action,
          held?.map(({ address }) => address).join(', ') ?? 'all',
          attachment,
          lastFault ?? reason,
        ]),
        none: 'pending releases: none',
      },
      ...(unreadable.length === 0 ? [] : [unreadableTable(unreadable)]),
      ...(fault === null ? [] : [sentence(`journal not durable: ${fault}`)]),
    ],
    hints: [...(entries.length > 0 ? [RETRY_HINT] : []), ...(unreadable.length > 0 ? [UNREADABLE_HINT] : [])],
    data: () => ({ entries, unreadable, fault }),
    exitCode: fault === null && unreadable.length === 0 ? DONE : PROBLEM_FOUND,
  };
}

const RETRY_HINT =
  'the plugin retries the entries; immediately: podwirectl journal retry; to discard one that fails permanently: podwirectl journal discard';

const UNREADABLE_HINT =
  'an unreadable entry: start a podwire-node of the release that wrote it; or release what its pod holds with podwirectl gc, then delete the file';

function unreadableTable(unreadable: Journal['unreadable']): Table {
  const rows = unreadable.map(({ path, fault }) => [path, fault]);
  return { kind: 'table', title: 'unreadable entries', columns: ['FILE', 'REASON'], rows, none: '' };
}

export const journalRetry: Verb = {
  name: 'journal retry',
  about: 'retry all entries of the journal immediately, and show the remaining entries',
  details: 'Exit code 1: entries are left.',
  options: [ON_NODE],
  run: async (_, { plugin, clock }) => {
    const before = await (await plugin()).journal();
    const after = await (await plugin()).retryJournal();
    const isLeft = (order: number): boolean => after.entries.some((entry) => entry.order === order);
    const done = before.entries.filter(({ order }) => !isLeft(order)).length;
    const report = journalReport(after, clock.nowMs());
    const sections = after.entries.length === 0 ? [] : report.sections;
    return {
      ...report,
      sections: [sentence(`done: ${done} of ${formatCount(before.entries.length, 'entry', 'entries')}`), ...sections],
      hints: after.entries.length > 0 ? ['the plugin retries the entries that are left'] : [],
      exitCode: after.entries.length > 0 ? FAILED : DONE,
    };
  },
};

export const journalShow: Verb = {
  name: 'journal show',
  about: 'details of one entry of the journal',
  positionals: [ENTRY_ARGUMENT],
  options: [ON_NODE],
  run: async (input, { plugin, clock }) => {
    const found = findEntries(input.at(ENTRY_ARGUMENT), await (await plugin()).journal());
    return {
      sections: found.map((entry) => entryFields(entry, clock.nowMs())),
      data: () => ({ entries: [...found] }),
    };
  },
};
