import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { SessionState } from './session-findings.js';

/**
 * Gauges of what nodes and datastore do not agree on. Counted only when they are collected.
 * @param state - fails while the datastore is unavailable; then nothing is reported
 * @returns a function that removes the gauges
 */
export function observeSessions(state: () => Promise<SessionState>): () => void {
  return observeMetrics(['podwire.ipam.nodes.conflicts', 'podwire.ipam.nodes.unreported'], async (observe) => {
    const latest = await state().catch(() => undefined);
    if (!latest) return;
    for (const { nodeName, count } of latest.conflicts)
      observe('podwire.ipam.nodes.conflicts', count, { node: nodeName });
    observe('podwire.ipam.nodes.unreported', latest.unreportedCount);
  });
}
