import { Failure } from '@podwire/shared/failure/failure';

import type { Change, RecordValue, View } from './view.js';

/**
 * Calico's migration lock: `datastoreReady: false` of ClusterInformation `default`. While it is there, no record that says who holds
 * what is written, so that a copy of the datastore stays right. Pools, reservations, nodes and settings are operators' to change.
 */
const LOCKED_KINDS: ReadonlySet<RecordValue['kind']> = new Set(['block', 'affinity', 'handle', 'endpoint']);

/** Whether a lock forbids the change. */
export function isForbiddenByLock(change: Change): boolean {
  return (change.type === 'put' || change.type === 'delete') && LOCKED_KINDS.has(change.record.kind);
}

/**
 * Refuses changes that a lock forbids.
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
