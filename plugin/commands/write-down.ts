import type { Debt } from '../journal/entry.js';
import { failureOf, giverNamesOf } from './settle.js';
import type { Tools } from './tools.js';

/** As many as show what is wrong: each is tried again in every round, and by every GC. */
const MAX_REFUSED_COUNT = 16;

/**
 * Writes a debt to the node's journal. Of those that another IPAM plugin refuses to take back after it had refused the ADD itself, which by
 * CNI leaves nothing, the latest stay: a configuration that it refuses would leave one for each attempt to start a pod.
 */
export async function writeDown(debt: Debt, tools: Tools): Promise<void> {
  const { journal, knownAllocations, log } = tools;
  await journal.add(debt);
  if (!knownAllocations.wasRefused(debt.attachment)) return;
  const refused = journal.entries().filter(({ attachment }) => knownAllocations.wasRefused(attachment));
  for (const entry of refused.slice(0, -MAX_REFUSED_COUNT)) {
    await failureOf(() => journal.discard(entry, giverNamesOf(entry, tools)), { log, what: 'giving up an entry' });
  }
}
