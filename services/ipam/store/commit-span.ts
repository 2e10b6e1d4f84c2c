import { context, trace, type Context } from '@opentelemetry/api';
import { withSpan } from '@podwire/shared/runtime/span';

import type { CommitResult, Transaction } from '../engine/store.js';

/** Spans of the update loop. Where nobody records the trace they are not made: a span costs as much as a decision. */

const NOTHING = (): void => undefined;

/** Begins the span of a request's wait. @returns what ends it; may be called again */
export function startWait(): () => void {
  if (trace.getActiveSpan()?.isRecording() !== true) return NOTHING;
  let end = NOTHING;
  const waited = new Promise<void>((resolve) => {
    end = resolve;
  });
  void withSpan('podwire.ipam.lane_wait', {}, () => waited);
  return end;
}

/**
 * Runs a commit in a span of the first trace that is recorded; the others' and it point to each other.
 * @param requests - the contexts of those whose changes are committed
 */
export function withCommitSpan(
  { puts, deletes, comparisons }: Transaction,
  requests: readonly Context[],
  commit: () => Promise<CommitResult>,
): Promise<CommitResult> {
  const recorded = requests.filter((each) => trace.getSpan(each)?.isRecording() === true);
  const [first, ...others] = [...recorded, ...requests.filter((each) => !trace.getSpan(each))];
  if (!first) return commit();
  const attributes = {
    'podwire.store.puts': puts.length,
    'podwire.store.deletes': deletes.length,
    'podwire.store.comparisons': comparisons.length,
    'podwire.store.group_size': requests.length,
  };
  return context.with(first, () =>
    withSpan('podwire.store.commit', attributes, async (span) => {
      for (const other of others.flatMap((each) => trace.getSpan(each) ?? [])) {
        span.addLink({ context: other.spanContext() });
        other.addLink({ context: span.spanContext() });
      }
      const result = await commit();
      span.setAttribute('podwire.store.committed', result.committed);
      return result;
    }),
  );
}
