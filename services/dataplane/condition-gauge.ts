import type { Meter, ObservableResult } from '@opentelemetry/api';

import type { Condition } from './routes/wanted.js';

/**
 * A gauge of the conditions that hold, by their reason, counted when it is collected: what GetNodeStatus tells, for alerts. A reason
 * that holds no more has no value.
 * @param conditions - must not throw
 * @returns ends it
 */
export function observeConditions(meter: Meter, conditions: () => readonly Condition[]): () => void {
  const gauge = meter.createObservableGauge('podwire.dataplane.conditions', {
    unit: '{condition}',
    description: 'What an operator should know of the node, by reason',
  });
  const observe = (result: ObservableResult): void => {
    for (const [reason, count] of countReasons(conditions())) result.observe(count, { reason });
  };
  gauge.addCallback(observe);
  return () => gauge.removeCallback(observe);
}

function countReasons(conditions: readonly Condition[]): ReadonlyMap<string, number> {
  const counts = new Map<string, number>();
  for (const { reason } of conditions) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  return counts;
}
