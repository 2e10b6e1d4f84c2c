import { DATAPLANE_METRICS } from './catalog/metrics-dataplane.js';
import type { MetricEntry } from './catalog/metric-entry.js';
import { IPAM_METRICS } from './catalog/metrics-ipam.js';
import { NODE_METRICS } from './catalog/metrics-node.js';
import { PLUGIN_METRICS } from './catalog/metrics-plugin.js';
import { PROCESS_METRICS } from './catalog/metrics-process.js';

/**
 * Every metric of Podwire: the source of the instruments, of deploy/observability/METRICS.md, and of the checks of
 * dashboards and alerts. A counter whose label values are all listed exists with 0 from the start of the process, so that
 * `increase` sees its first event.
 */
export const METRICS = {
  ...PROCESS_METRICS,
  ...PLUGIN_METRICS,
  ...IPAM_METRICS,
  ...NODE_METRICS,
  ...DATAPLANE_METRICS,
};

export type MetricName = keyof typeof METRICS;

export function metricOf(name: MetricName): MetricEntry {
  return METRICS[name];
}
