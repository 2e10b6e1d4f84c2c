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
  /** How long the fault has been seen, in milliseconds, for allocations without an allocation time. */
  readonly seenMs: number;
  /** Reports the repair without executing it. */
  readonly dryRun: boolean;
}

export type RepairResult =
  | { readonly state: 'repaired' | 'possible'; readonly effect: string }
  /** The fault no longer exists. */
  | { readonly state: 'gone' }
  | { readonly state: 'refused'; readonly reason: string };

/** A finding with the result of its repair. */
export interface RepairedFinding {
  readonly finding: Finding;
  readonly result: RepairResult;
}

/** Findings to repair, and the way to repair them. */
export interface RepairOptions {
  /** Only findings of these kinds; empty for all. */
  readonly kinds: readonly FindingKind[];
  /** Reports the repair without executing it. */
  readonly dryRun: boolean;
  /** Whether addresses without a known user may be released. */
  readonly releases: boolean;
  /** Grace period before an unused address is released. */
  readonly graceMs: number;
  /** Maximum number of findings to repair. */
  readonly limit: number;
}

export interface RepairReport {
  readonly results: readonly RepairedFinding[];
  /** Whether there were more findings than the limit. */
  readonly more: boolean;
}

/** More than a usual repair needs, and below etcd's transaction limit. */
const MAX_CHANGES_COUNT = 120;

/**
 * Repairs a finding, if it still holds. It is rechecked on the view of the commit, and the changes compare every
 * record of that check, so a concurrent change of one of them makes it run again.
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
    const text = `the repair needs ${changes.length} changes, more than one transaction allows; release the addresses one by one`;
    return noChanges({ state: 'refused', reason: text });
  }
  const { effect } = remedy;
  return dryRun ? noChanges({ state: 'possible', effect }) : { changes, outcome: { state: 'repaired', effect } };
}

function releaseRefusal({ sinceMs }: Remedy & { type: 'release' }, input: RepairInput): string | undefined {
  const { releases, nowMs, graceMs, seenMs } = input;
  if (!releases) return 'the repair releases addresses, which must be requested';
  const ageMs = sinceMs === undefined ? seenMs : nowMs - sinceMs;
  if (ageMs >= graceMs) return undefined;
  const since = sinceMs === undefined ? 'was first seen' : 'was allocated';
  return `it ${since} ${Math.max(0, Math.floor(ageMs / 1000))} s ago; the grace period is ${Math.ceil(graceMs / 1000)} s`;
}

function noChanges(outcome: RepairResult): Decision<RepairResult> {
  return { changes: [], outcome };
}
