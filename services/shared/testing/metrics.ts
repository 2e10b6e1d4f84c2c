import { metrics } from '@opentelemetry/api';
import {
  AggregationTemporality,
  DataPointType,
  InstrumentType,
  MeterProvider,
  MetricReader,
  type DataPoint,
  type MetricData,
} from '@opentelemetry/sdk-metrics';

class DeltaReader extends MetricReader {
  constructor() {
    super({
      aggregationTemporalitySelector: (type) =>
        type === InstrumentType.UP_DOWN_COUNTER ? AggregationTemporality.CUMULATIVE : AggregationTemporality.DELTA,
    });
  }

  protected override onForceFlush(): Promise<void> {
    return Promise.resolve();
  }

  protected override onShutdown(): Promise<void> {
    return Promise.resolve();
  }
}

/** The metrics of the process from its creation on, as an exporter reads them. `metrics.disable()` ends it. */
export class ReadMetrics {
  readonly #reader = new DeltaReader();
  readonly #prefix: string;

  /** @param prefix - is omitted from names; other metrics are not read */
  constructor(prefix: string) {
    this.#prefix = prefix;
    metrics.disable();
    metrics.setGlobalMeterProvider(new MeterProvider({ readers: [this.#reader] }));
  }

  /**
   * @returns `name label=value … number`, sorted: of gauges the value; of counters and histograms the sum since the last
   * reading, unless it is 0
   */
  async read(): Promise<string[]> {
    const { resourceMetrics, errors } = await this.#reader.collect();
    if (errors.length > 0) throw errors[0];
    const all = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    const own = all.filter(({ descriptor }) => descriptor.name.startsWith(this.#prefix));
    return own.flatMap((metric) => this.#lines(metric)).sort();
  }

  #lines({ descriptor, dataPoints, ...data }: MetricData): string[] {
    const name = descriptor.name.slice(this.#prefix.length);
    const isCounter = data.dataPointType === DataPointType.SUM && data.isMonotonic;
    return dataPoints.flatMap((point: DataPoint<unknown>) => {
      const value = valueOf(point.value);
      if (isCounter && value === 0) return [];
      const labels = Object.entries(point.attributes).map(([label, text]) => `${label}=${String(text)}`);
      return [[name, ...labels, value].join(' ')];
    });
  }
}

function valueOf(value: unknown): unknown {
  return typeof value === 'object' && value && 'sum' in value ? value.sum : value;
}
