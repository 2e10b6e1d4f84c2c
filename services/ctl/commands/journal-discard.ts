import { Failure } from '@podwire/shared/failure/failure';

import type { JournalEntry } from '../clients/plugin-socket.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG } from '../exit-codes.js';
import { sentence } from '../output/report.js';
import { entriesNamed, entryFields, WHICH_ENTRY } from '../resources/journal.js';

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
