import { Failure } from '@podwire/shared/failure/failure';
import { compareTexts } from '@podwire/shared/words/order';

import { ALIVE_MS, type NodeSession, type StoreEpoch } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';

/**
 * Store epochs. A datastore that was restored from a backup does not know the addresses that were allocated since. So a
 * restore begins an epoch, in which every node known to run reports what it holds. New addresses wait for the reports,
 * for a minute at most. After that the blocks of a node that has not reported are left to that node.
 */

/** How long new addresses wait for the reports of the nodes known to run, in milliseconds. */
const WAIT_MS = 60_000;

interface NewEpoch {
  readonly id: string;
  readonly nowMs: number;
  /** ID of the last import into the datastore; empty for none. */
  readonly importId: string;
}

/** A new epoch, because the datastore was restored. The sessions still have the times from before the restore. */
export function restoredEpoch(view: View, { id, nowMs, importId }: NewEpoch): Change {
  let newestMs: number | undefined;
  for (const { heardAtMs } of view.sessions()) newestMs = Math.max(newestMs ?? heardAtMs, heardAtMs);
  const heardSinceMs = newestMs === undefined ? nowMs : Math.max(0, newestMs - ALIVE_MS);
  return { type: 'put', record: { kind: 'storeEpoch', value: { id, startedAtMs: nowMs, importId, heardSinceMs } } };
}

/**
 * The epoch of a service that starts: a new one if the datastore was imported since the epoch began, or if there is none.
 * The first epoch awaits no node. Idempotent.
 * @returns whether an epoch began because of an import
 */
export function beginEpoch(view: View, begin: NewEpoch): Decision<boolean> {
  const { id, nowMs, importId } = begin;
  const current = view.epoch();
  if (current?.importId === importId || view.unreadableRecord({ kind: 'storeEpoch' }))
    return { changes: [], outcome: false };
  const first: StoreEpoch = { id, startedAtMs: nowMs, importId, heardSinceMs: undefined };
  const change: Change = current
    ? restoredEpoch(view, begin)
    : { type: 'put', record: { kind: 'storeEpoch', value: first } };
  return { changes: [change], outcome: current !== undefined };
}

/** Whether new addresses may have to wait, because the epoch began after a restore less than a minute ago. */
export function isNewEpoch({ startedAtMs, heardSinceMs }: StoreEpoch, nowMs: number): boolean {
  return heardSinceMs !== undefined && Math.abs(nowMs - startedAtMs) < WAIT_MS;
}

/** Whether a node was known to run when the epoch began, and has not reported its inventory since. */
export function isAwaited(view: View, nodeName: string): boolean {
  const epoch = view.epoch();
  const session = epoch?.heardSinceMs === undefined ? undefined : view.session(nodeName);
  return epoch !== undefined && session !== undefined && isAwaitedIn(epoch, session);
}

function isAwaitedIn({ id, heardSinceMs }: StoreEpoch, { epoch, heardAtMs }: NodeSession): boolean {
  return heardSinceMs !== undefined && epoch !== id && heardAtMs >= heardSinceMs;
}

/** Names of the nodes that are awaited in an epoch that began just now, in order. */
export function awaitedNodes(view: View, nowMs: number): string[] {
  const epoch = view.epoch();
  if (!epoch || !isNewEpoch(epoch, nowMs)) return [];
  const awaited = [...view.sessions()].filter((session) => isAwaitedIn(epoch, session));
  return awaited.map(({ name }) => name).sort(compareTexts);
}

/** Maximum number of nodes named in a message. */
const NAMED_NODES = 8;

/**
 * For decisions that take new addresses.
 * @throws Failure STORE_RESTORED while the datastore may not know every holder
 */
export function requireReports(view: View, nowMs: number): void {
  const names = awaitedNodes(view, nowMs);
  const epoch = view.epoch();
  if (!epoch || names.length === 0) return;
  const named = names.slice(0, NAMED_NODES).join(', ');
  const more = names.length > NAMED_NODES ? ` and ${names.length - NAMED_NODES} more` : '';
  const until = new Date(epoch.startedAtMs + WAIT_MS).toISOString();
  const text = `the datastore was restored from a backup, and does not know the addresses that were allocated since: waiting until ${until} for the inventories of nodes ${named}${more}; repeat the request`;
  throw new Failure('STORE_RESTORED', text, { details: { nodes: named } });
}
