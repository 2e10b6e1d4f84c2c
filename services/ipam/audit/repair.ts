import type { Decision, View } from '../records/view.js';
import { recheckFinding } from './audit.js';
import { AuditContext } from './context.js';
import type { Finding, FindingKind, Remedy } from './finding.js';

/** A repair request with its conditions. */
export interface RepairInput {
  readonly finding: Pick<Finding, 'id' | 'subject'>;
  readonly nowMs: number;
  /** Grace period before an unused address is released. */
  readonly graceMs: number;
  /** Whether addresses without a known user may be released. */
  readonly releases: boolean;
  /** When the fault was first seen, in epoch milliseconds, for allocations without an allocation time. */
  readonly firstSeenMs: number;
  /** Only says what would be done. */
  readonly dryRun: boolean;
}

export type RepairResult =
  | { readonly state: 'repaired' | 'possible'; readonly effect: string }
  /** The fault is not there any more. */
  | { readonly state: 'gone' }
  | { readonly state: 'refused'; readonly reason: string };

/** A finding, and what came of it. */
export interface RepairedFinding {
  readonly finding: Finding;
  readonly result: RepairResult;
}

/** Which findings to repair, and how far. */
export interface RepairOptions {
  /** Only findings of these kinds; empty for all. */
  readonly kinds: readonly FindingKind[];
  /** Only says what would be done. */
  readonly dryRun: boolean;
  /** Whether addresses without a known user may be released. */
  readonly releases: boolean;
  /** How long nothing may have used them before. */
  readonly graceMs: number;
  /** At most so many findings are looked at. */
  readonly limit: number;
}

export interface RepairReport {
  readonly results: readonly RepairedFinding[];
  /** Whether there were more findings than the limit. */
  readonly more: boolean;
}

/** More than any single repair of a sound size needs, and below what etcd takes in one transaction. */
const MAX_CHANGES_COUNT = 120;

/**
 * Repairs a finding, if it still holds. It is judged again on the view of the commit, and the changes compare every
 * record of that judgement, so a concurrent change of one of them makes it run again.
 */
export function repair(view: View, input: RepairInput): Decision<RepairResult> {
  const { finding, nowMs, graceMs, dryRun } = input;
  const found = recheckFinding(new AuditContext(view, { nowMs, graceMs }), finding);
  if (!found) return noChanges({ state: 'gone' });
  const { remedy } = found;
  if (remedy.type === 'none') return noChanges({ state: 'refused', reason: remedy.reason });
  const reason = remedy.type === 'release' ? releaseRefusal(remedy, input) : undefined;
  if (reason !== undefined) return noChanges({ state: 'refused', reason });
  const changes = remedy.changes();
  if (changes.length > MAX_CHANGES_COUNT) {
    const text = `it takes ${changes.length} changes, more than one transaction may have; release the addresses one by one`;
    return noChanges({ state: 'refused', reason: text });
  }
  const { effect } = remedy;
  return dryRun ? noChanges({ state: 'possible', effect }) : { changes, outcome: { state: 'repaired', effect } };
}

function releaseRefusal({ sinceMs }: Remedy & { type: 'release' }, input: RepairInput): string | undefined {
  const { releases, nowMs, graceMs, firstSeenMs } = input;
  if (!releases) return 'it would give addresses back, which has to be asked for';
  const ageMs = nowMs - (sinceMs ?? firstSeenMs);
  if (ageMs >= graceMs) return undefined;
  const since = sinceMs === undefined ? 'was first seen' : 'was allocated';
  return `it ${since} ${Math.max(0, Math.floor(ageMs / 1000))} s ago, and has to be ${Math.ceil(graceMs / 1000)} s old`;
}

function noChanges(outcome: RepairResult): Decision<RepairResult> {
  return { changes: [], outcome };
}
