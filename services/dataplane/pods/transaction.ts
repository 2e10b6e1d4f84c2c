import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { markFailed, withSpan } from '@podwire/shared/telemetry/span';

import { formatStep, rollbackSteps, type Side, type Step } from '../wiring/step.js';
import type { BatchOutcome, Links, PodSession, StepFailure } from './kernel.js';

/** Outcome of a plan. */
export type Result = Applied | NotApplied;

export interface Applied {
  readonly applied: true;
  /** Number of steps that changed something. */
  readonly changes: number;
  /** Optional steps that failed. */
  readonly warnings: readonly StepFailure[];
  /** The links that the plan created or changed, in their final state. */
  readonly links: Links;
}

export interface NotApplied {
  readonly applied: false;
  /** The cause, and what happened to the finished steps. */
  readonly failure: Failure;
  /** Name of the kernel's error; undefined when the call ended for another reason. */
  readonly errno: string | undefined;
  /** Whether the rollback restored the earlier state. */
  readonly isRolledBack: boolean;
}

/** Progress of a transaction. */
interface Progress {
  /** Number of completed rounds. */
  readonly round: number;
  readonly links: Links;
}

export interface TransactionOptions {
  readonly session: PodSession;
  /** Checked before each round, and at the end. The rollback ignores it. */
  readonly signal: AbortSignal;
  /** The steps of the next round; empty at the end. A plan has several rounds where a step depends on a result. */
  readonly next: (progress: Progress) => readonly Step[];
}

/** One for the plan, and two to correct attributes that the kernel set differently. More rounds would not help. */
const ROUNDS_MAX = 3;

/**
 * Applies a plan round by round. When a step fails, or the signal fires, exactly the finished steps are rolled back in reverse
 * order. Requires the attachment's lock, which covers the rollback too.
 * @throws errors other than the kernel's and the caller's, which are defects; also after a rollback
 */
export async function transact({ session, signal, next }: TransactionOptions): Promise<Result> {
  const finished: Step[] = [];
  const warnings: StepFailure[] = [];
  let links: Links = {};
  try {
    for (let round = 0; ; round++) {
      // Also after the last round: a caller that gave up must not find the result in place.
      if (signal.aborted) throw failureOfSignal(signal);
      const steps = next({ round, links });
      if (steps.length === 0) return { applied: true, changes: finished.filter(isChange).length, warnings, links };
      if (round === ROUNDS_MAX) return await rollBack(session, { finished, cause: ineffectiveSettings(steps) });
      const outcome = await applyWithSpan(session, steps);
      finished.push(...outcome.finished);
      warnings.push(...outcome.warnings);
      if (outcome.failed) return await rollBack(session, { finished, cause: outcome.failed });
      links = { ...links, ...outcome.links };
    }
  } catch (error) {
    const failure = error instanceof Failure ? error : new Failure('INTERNAL', String(error));
    const result = await rollBack(session, { finished, cause: { failure } });
    if (error instanceof Failure) return result;
    throw error;
  }
}

/** A sysctl whose value was read as the one to write may not have changed. */
function isChange(step: Step): boolean {
  return step.type !== 'sysctl-write' || step.previous !== step.value;
}

interface TransactionCause {
  readonly failure: Failure;
  readonly step?: Step;
  readonly errno?: string;
}

interface RollbackOptions {
  readonly finished: readonly Step[];
  readonly cause: TransactionCause;
}

async function rollBack(session: PodSession, { finished, cause }: RollbackOptions): Promise<NotApplied> {
  // A link has several attributes; the kernel may have set some before it refused another.
  const partlyApplied = cause.step?.type === 'link-set' ? [cause.step] : [];
  const failures = await applyRollback(session, rollbackSteps([...finished, ...partlyApplied]));
  const { failure, errno } = cause;
  if (failures.length === 0) return { applied: false, failure, errno, isRolledBack: true };
  const list = failures.map((failed) => `${formatStep(failed.step)} (${failed.failure.message})`).join('; ');
  const message = `${failure.message}. The rollback failed too; revert these changes manually: ${list}`;
  const options = { details: { ...failure.details, undone: 'false' }, cause: failure };
  return { applied: false, failure: new Failure(failure.code, message, options), errno, isRolledBack: false };
}

/** Applies all steps in spite of failures. @returns the failed steps */
async function applyRollback(session: PodSession, steps: readonly Step[]): Promise<StepFailure[]> {
  const failures: StepFailure[] = [];
  let rest = steps;
  while (rest.length > 0) {
    const { failed } = await applyWithSpan(session, rest);
    if (!failed) break;
    if (!isAlreadyGone(failed)) failures.push(failed);
    rest = rest.slice(rest.indexOf(failed.step) + 1);
  }
  return failures;
}

/** The kernel's errors for deleting an object that does not exist. */
const MISSING_OBJECT_ERRNOS = ['ESRCH', 'ENOENT', 'EADDRNOTAVAIL'];

/** Deleting a link also removes everything on it, so restoring that is unnecessary. */
function isAlreadyGone({ step, errno }: StepFailure): boolean {
  return errno === 'ENODEV' || (step.type.endsWith('-delete') && MISSING_OBJECT_ERRNOS.includes(errno));
}

function applyWithSpan(session: PodSession, steps: readonly Step[]): Promise<BatchOutcome> {
  const sides = (['host', 'pod'] satisfies Side[]).filter((side) => steps.some((step) => step.side === side));
  const attributes = { 'podwire.kernel.namespace': sides.join(' '), 'podwire.kernel.requests': steps.length };
  return withSpan('podwire.kernel.batch', attributes, async (span) => {
    const outcome = await session.apply(steps);
    if (outcome.failed) {
      span.setAttribute('podwire.kernel.failed_operation', formatStep(outcome.failed.step));
      markFailed(span, outcome.failed.failure);
    }
    return outcome;
  });
}

function ineffectiveSettings(steps: readonly Step[]): TransactionCause {
  const list = steps.map(formatStep).join('; ');
  return { failure: new Failure('KERNEL_REFUSED', `the kernel accepted these settings without effect: ${list}`) };
}
