import type { Debt } from '../journal/entry.js';
import type { Tools } from './context.js';
import { failureOf, giverNamesOf } from './release.js';

/** As many as show what is wrong: each is tried again in every round, and by every GC. */
const MAX_REFUSED_COUNT = 16;

/**
 * Writes a debt to the node's journal. Of those that another IPAM plugin refuses to take back after it had refused the ADD itself, which by
 * CNI leaves nothing, the latest stay: a configuration that it refuses would leave one for each attempt to start a pod.
 */
export async function writeDown(debt: Omit<Debt, 'refused'>, tools: Tools): Promise<void> {
  const { journal, knownAllocations, log } = tools;
  const { attachment } = debt;
  // An earlier process may have seen the ADD. One that came later would have struck the entry out before it asked.
  const isRefused = knownAllocations.wasRefused(attachment) || journal.get(attachment)?.refused;
  await journal.add({ ...debt, ...(isRefused && { refused: true }) });
  if (!isRefused) return;
  const refused = journal.entries().filter((entry) => entry.refused);
  for (const entry of refused.slice(0, -MAX_REFUSED_COUNT)) {
    await failureOf(() => journal.discard(entry, giverNamesOf(entry, tools)), { log, what: 'giving up an entry' });
  }
}
