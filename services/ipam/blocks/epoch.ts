import { Failure } from '@podwire/shared/failure/failure';
import { compareTexts } from '@podwire/shared/words/order';

import type { StoreEpoch } from '../records/session.js';
import type { Change, Decision, View } from '../records/view.js';

/**
 * Store epochs. A datastore that was restored from a backup does not know the addresses that were allocated since. So a
 * restore begins an epoch, in which every node with a session reports what it holds. New addresses wait for the reports,
 * for a minute at most. After that the blocks of a node that has not reported are left to that node.
 */

/** How long new addresses wait for the reports of the nodes, in milliseconds. */
const WAIT_MS = 60_000;

type NewEpoch = Omit<StoreEpoch, 'phase'>;

/** A new epoch, because the datastore was restored. */
export function restoredEpoch(epoch: NewEpoch): Change {
  return putEpoch({ ...epoch, phase: 'waiting' });
}

function putEpoch(value: StoreEpoch): Change {
  return { type: 'put', record: { kind: 'storeEpoch', value } };
}

/**
 * The epoch of a service that starts: a new one if the datastore was imported since the epoch began, or if there is none.
 * The first epoch awaits no node. Idempotent.
 * @returns whether an epoch began because of an import
 */
export function beginEpoch(view: View, begin: NewEpoch): Decision<boolean> {
  const current = view.epoch();
  if (current?.importId === begin.importId || view.unreadableRecord({ kind: 'storeEpoch' }))
    return { changes: [], outcome: false };
  const change = current ? restoredEpoch(begin) : putEpoch({ ...begin, phase: 'first' });
  return { changes: [change], outcome: current !== undefined };
}

/** Whether new addresses may have to wait for reports. */
export function isNewEpoch(view: View): boolean {
  return view.epoch()?.phase === 'waiting' && view.epochAgeMs() < WAIT_MS;
}

/**
 * Ends the wait for all replicas, also for replicas that start later. Each one has waited for as long as it saw the epoch.
 * Idempotent.
 */
export function endWait(view: View): Decision<undefined> {
  const epoch = view.epoch();
  const isOver = epoch?.phase === 'waiting' && !isNewEpoch(view);
  return { changes: isOver ? [putEpoch({ ...epoch, phase: 'waited' })] : [], outcome: undefined };
}

/** Whether a node has not reported its inventory since the datastore was restored. */
export function isAwaited(view: View, nodeName: string): boolean {
  const epoch = view.epoch();
  if (!epoch || epoch.phase === 'first') return false;
  const session = view.session(nodeName);
  return session !== undefined && session.epoch !== epoch.id;
}

/** How long nodes report what the datastore lost in a restore, in milliseconds. */
const REPORTS_MS = 10 * 60_000;

/** Whether a node may have many pods whose addresses the datastore lost in a restore. */
export function mayHaveLost(view: View, nodeName: string): boolean {
  const epoch = view.epoch();
  return (
    epoch !== undefined && epoch.phase !== 'first' && (isAwaited(view, nodeName) || view.epochAgeMs() < REPORTS_MS)
  );
}

/** Names of the nodes for whose reports new addresses wait, in order. */
export function awaitedNodes(view: View): string[] {
  if (!isNewEpoch(view)) return [];
  const awaited = [...view.sessions()].filter(({ name }) => isAwaited(view, name));
  return awaited.map(({ name }) => name).sort(compareTexts);
}

/** Maximum number of nodes named in a message. */
const NAMED_NODES = 8;

/**
 * Precondition of decisions that take new addresses.
 * @throws Failure STORE_RESTORED while the datastore may not know every holder
 */
export function requireReports(view: View): void {
  const names = awaitedNodes(view);
  if (names.length === 0) return;
  const named = names.slice(0, NAMED_NODES).join(', ');
  const more = names.length > NAMED_NODES ? ` and ${names.length - NAMED_NODES} more` : '';
  const text = `the datastore was restored from a backup, and does not know the addresses that were allocated since: waiting for the inventories of nodes ${named}${more}, for a minute at most; repeat the request`;
  throw new Failure('STORE_RESTORED', text, { details: { nodes: named } });
}
