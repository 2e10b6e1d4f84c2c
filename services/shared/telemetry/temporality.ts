import { AggregationTemporality, InstrumentType, type PushMetricExporter } from '@opentelemetry/sdk-metrics';

/**
 * The temporality of a reader's metrics. The SDK exports each series of a cumulative instrument for ever; of an observed
 * gauge only what is observed counts, so that the series of an ended condition ends too. Exports do not show the
 * temporality of gauges.
 */
export function temporalityOf(
  type: InstrumentType,
  others = AggregationTemporality.CUMULATIVE,
): AggregationTemporality {
  return type === InstrumentType.OBSERVABLE_GAUGE ? AggregationTemporality.DELTA : others;
}

/** The exporter, whose own choice holds for all metrics but observed gauges. */
export function withTemporality<Exporter extends PushMetricExporter>(exporter: Exporter): Exporter {
  const own = exporter.selectAggregationTemporality?.bind(exporter);
  exporter.selectAggregationTemporality = (type) => temporalityOf(type, own?.(type));
  return exporter;
}
