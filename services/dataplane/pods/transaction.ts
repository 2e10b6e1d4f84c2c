import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { markFailed, withSpan } from '@podwire/shared/runtime/span';

import { formatStep, undoOf, type Side, type Step } from '../wiring/step.js';
import type { BatchOutcome, Links, PodSession, StepFailure } from './kernel.js';

/** What came of a plan. */
export type Result = Applied | NotApplied;

export interface Applied {
  readonly applied: true;
  /** Steps that changed something. */
  readonly changes: number;
  /** Optional steps that failed. */
  readonly warnings: readonly StepFailure[];
  /** The links that the plan made or set, as they are in the end. */
  readonly links: Links;
}

export interface NotApplied {
  readonly applied: false;
  /** Why, and what became of the steps that were finished. */
  readonly failure: Failure;
  /** Name of the kernel's error; undefined when the call ended for another reason. */
  readonly errno: string | undefined;
  /** Whether everything is as it was before. */
  readonly undone: boolean;
}

/** How far a transaction has come. */
interface Progress {
  /** Rounds that were carried out. */
  readonly round: number;
  readonly links: Links;
}

export interface TransactionOptions {
  readonly session: PodSession;
  /** Looked at before each round, and in the end. Undoing goes on regardless. */
  readonly signal: AbortSignal;
  /** The steps of the next round; none when everything is done. A plan has several rounds where a step depends on an answer. */
  readonly next: (progress: Progress) => readonly Step[];
}

/** One for a plan, and two for what it made otherwise than it was told. A kernel that resists for longer does so for ever. */
const ROUNDS_MAX = 3;

/**
 * Carries out a plan, round by round. When a step fails, or the signal fires, exactly the finished steps are taken back, last
 * first. Call it under the lock of the attachment, which covers the undoing too.
 * @throws what is no failure of the kernel's or the caller's, but a defect; it is undone as well
 */
export async function transact({ session, signal, next }: TransactionOptions): Promise<Result> {
  const finished: Step[] = [];
  const warnings: StepFailure[] = [];
  let links: Links = {};
  try {
    for (let round = 0; ; round++) {
      // Also when all is done by then: whoever gave up is not to find what was made after all.
      if (signal.aborted) throw failureOfSignal(signal);
      const steps = next({ round, links });
      if (steps.length === 0) return { applied: true, changes: finished.filter(isChange).length, warnings, links };
      if (round === ROUNDS_MAX) return await takeBack(session, { finished, cause: keepsDiffering(steps) });
      const outcome = await traced(session, steps);
      finished.push(...outcome.finished);
      warnings.push(...outcome.warnings);
      if (outcome.failed) return await takeBack(session, { finished, cause: outcome.failed });
      links = { ...links, ...outcome.links };
    }
  } catch (error) {
    const failure = error instanceof Failure ? error : new Failure('INTERNAL', String(error));
    const result = await takeBack(session, { finished, cause: { failure } });
    if (error instanceof Failure) return result;
    throw error;
  }
}

/** A sysctl whose value was read as it was written may have had it before. */
function isChange(step: Step): boolean {
  return step.type !== 'sysctl-write' || step.previous !== step.value;
}

interface Ending {
  readonly failure: Failure;
  readonly step?: Step;
  readonly errno?: string;
}

interface Unfinished {
  readonly finished: readonly Step[];
  readonly cause: Ending;
}

async function takeBack(session: PodSession, { finished, cause }: Unfinished): Promise<NotApplied> {
  // A link has several attributes, and the kernel may have set some before it refused another.
  const halfDone = cause.step?.type === 'link-set' ? [cause.step] : [];
  const leftovers = await undo(session, undoOf([...finished, ...halfDone]));
  const { failure, errno } = cause;
  if (leftovers.length === 0) return { applied: false, failure, errno, undone: true };
  const list = leftovers.map((left) => `${formatStep(left.step)} (${left.failure.message})`).join('; ');
  const message = `${failure.message}. Undoing it failed too, do it by hand: ${list}`;
  const options = { details: { ...failure.details, undone: 'false' }, cause: failure };
  return { applied: false, failure: new Failure(failure.code, message, options), errno, undone: false };
}

/** Carries out all steps, whichever fail. @returns those that failed */
async function undo(session: PodSession, steps: readonly Step[]): Promise<StepFailure[]> {
  const failures: StepFailure[] = [];
  let rest = steps;
  while (rest.length > 0) {
    const { failed } = await traced(session, rest);
    if (!failed) break;
    if (!isGoneAnyway(failed)) failures.push(failed);
    rest = rest.slice(rest.indexOf(failed.step) + 1);
  }
  return failures;
}

/** What the kernel answers to a deletion of what is not there. */
const NOT_THERE = ['ESRCH', 'ENOENT', 'EADDRNOTAVAIL'];

/** With a link goes all that was on it, and all that was to be put back there. */
function isGoneAnyway({ step, errno }: StepFailure): boolean {
  return errno === 'ENODEV' || (step.type.endsWith('-delete') && NOT_THERE.includes(errno));
}

function traced(session: PodSession, steps: readonly Step[]): Promise<BatchOutcome> {
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

function keepsDiffering(steps: readonly Step[]): Ending {
  const list = steps.map(formatStep).join('; ');
  return { failure: new Failure('KERNEL_REFUSED', `the kernel takes these settings without effect: ${list}`) };
}
