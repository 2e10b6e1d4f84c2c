import { metricOf, type MetricName } from '@podwire/shared/telemetry/metrics';

/** Suffixes that Prometheus appends by unit (OpenTelemetry, "Prometheus and OpenMetrics Compatibility"). */
const UNIT_SUFFIXES: Readonly<Record<string, string>> = { s: '_seconds', By: '_bytes' };

/** The name of a metric in Prometheus: `podwire_store_duration_seconds`. Of a histogram, without `_bucket`, `_sum` and `_count`. */
export function seriesName(name: MetricName): string {
  const { kind, unit } = metricOf(name);
  return `${name.replaceAll('.', '_')}${UNIT_SUFFIXES[unit] ?? ''}${kind === 'counter' ? '_total' : ''}`;
}

/** All names of a metric's series in Prometheus. */
export function seriesNames(name: MetricName): string[] {
  const own = seriesName(name);
  return metricOf(name).kind === 'histogram' ? ['bucket', 'sum', 'count'].map((part) => `${own}_${part}`) : [own];
}

/** A label's name in Prometheus. */
export function labelName(label: string): string {
  return label.replaceAll('.', '_');
}
