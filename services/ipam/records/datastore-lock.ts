import { Failure } from '@podwire/shared/failure/failure';

import type { Change, RecordValue, View } from './view.js';

/**
 * Calico's migration lock: `datastoreReady: false` of ClusterInformation `default`. While it is set, no record of
 * allocations is written, so a copy of the datastore stays correct. Operators may still change pools, reservations,
 * nodes and settings.
 */
const LOCKED_KINDS: ReadonlySet<RecordValue['kind']> = new Set(['block', 'affinity', 'handle', 'endpoint']);

/** Whether the lock forbids the change. */
export function isForbiddenByLock(change: Change): boolean {
  return (change.type === 'put' || change.type === 'delete') && LOCKED_KINDS.has(change.record.kind);
}

/**
 * Refuses changes that the lock forbids.
 * @throws Failure STORE_LOCKED
 */
export function requireUnlocked(view: View, changes: readonly Change[]): void {
  if (view.isLocked() && changes.some(isForbiddenByLock)) throw lockedFailure();
}

export function lockedFailure(): Failure {
  return new Failure(
    'STORE_LOCKED',
    'the datastore is locked: Calico\'s ClusterInformation "default" has datastoreReady false, as during a migration; repeat the request once it is unlocked (calicoctl datastore migrate unlock)',
  );
}
