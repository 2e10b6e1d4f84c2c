import { Failure } from '@podwire/shared/failure/failure';
import type { FailureCode } from '@podwire/shared/failure/codes';

/** What IPAM has not taken back. */
export interface Left {
  readonly count: number;
  /** The first one's. */
  readonly failure: unknown;
}

/** Nobody answers, or nobody waits any more: the others would fare no better. */
const SILENCE: ReadonlySet<FailureCode> = new Set(['UNREACHABLE', 'DEADLINE_EXCEEDED', 'CANCELLED']);

/**
 * Gives back one after the other. One that IPAM refuses, as with a record that cannot be read, holds up no other; with silence it is
 * over.
 * @returns undefined when nothing is left. Never rejects.
 */
export async function releaseEach<Item>(
  items: readonly Item[],
  release: (item: Item) => Promise<void>,
): Promise<Left | undefined> {
  const failures: unknown[] = [];
  for (const [position, item] of items.entries()) {
    try {
      await release(item);
    } catch (failure) {
      failures.push(failure);
      const rest = items.length - position - 1;
      if (isSilence(failure)) return { count: failures.length + rest, failure: failures[0] };
    }
  }
  return failures.length > 0 ? { count: failures.length, failure: failures[0] } : undefined;
}

function isSilence(failure: unknown): boolean {
  return failure instanceof Failure && SILENCE.has(failure.code);
}
