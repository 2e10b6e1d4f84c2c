import type { MeterProvider } from '@opentelemetry/api';
import {
  AggregationTemporality,
  ConsoleMetricExporter,
  InstrumentType,
  PeriodicExportingMetricReader,
  type MetricReader,
  type PushMetricExporter,
} from '@opentelemetry/sdk-metrics';
import {
  BatchSpanProcessor,
  ConsoleSpanExporter,
  SimpleSpanProcessor,
  type BufferConfig,
  type SpanExporter,
  type SpanProcessor,
} from '@opentelemetry/sdk-trace-base';

import type { Logger } from '../runtime/log.js';

/** The default of OpenTelemetry, in milliseconds. */
const EXPORT_INTERVAL_MS = 60_000;
const EXPORT_TIMEOUT_MS = 30_000;

type Protocol = 'grpc' | 'http/json' | 'http/protobuf';

const DEFAULT_PROTOCOL: Protocol = 'http/protobuf';

/** Each protocol is loaded alone, because each takes some megabytes. */
const METRIC_EXPORTERS: Readonly<Record<Protocol, () => Promise<PushMetricExporter>>> = {
  grpc: async () => {
    (await import('../tls/server-name.js')).omitAddressesAsServerNames();
    return new (await import('@opentelemetry/exporter-metrics-otlp-grpc')).OTLPMetricExporter();
  },
  'http/json': async () => new (await import('@opentelemetry/exporter-metrics-otlp-http')).OTLPMetricExporter(),
  'http/protobuf': async () => new (await import('@opentelemetry/exporter-metrics-otlp-proto')).OTLPMetricExporter(),
};

const SPAN_EXPORTERS: Readonly<Record<Protocol, () => Promise<SpanExporter>>> = {
  grpc: async () => {
    (await import('../tls/server-name.js')).omitAddressesAsServerNames();
    return new (await import('@opentelemetry/exporter-trace-otlp-grpc')).OTLPTraceExporter();
  },
  'http/json': async () => new (await import('@opentelemetry/exporter-trace-otlp-http')).OTLPTraceExporter(),
  'http/protobuf': async () => new (await import('@opentelemetry/exporter-trace-otlp-proto')).OTLPTraceExporter(),
};

/** The names in OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER, without `prometheus` and `none`. */
interface ExporterSource {
  readonly names: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly log: Logger;
}

/**
 * Readers that send metrics, by OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_METRIC_EXPORT_INTERVAL and OTEL_METRIC_EXPORT_TIMEOUT.
 * The exporters read the other variables of OTLP themselves. Unknown names and values are logged.
 */
export async function metricReaders({ names, env, log }: ExporterSource): Promise<MetricReader[]> {
  const readers: MetricReader[] = [];
  const exportIntervalMillis = milliseconds(env.OTEL_METRIC_EXPORT_INTERVAL, EXPORT_INTERVAL_MS);
  const timeoutMs = milliseconds(env.OTEL_METRIC_EXPORT_TIMEOUT, EXPORT_TIMEOUT_MS);
  const exportTimeoutMillis = Math.min(timeoutMs, exportIntervalMillis);
  for (const name of names) {
    if (name === 'otlp' || name === 'console') {
      const protocol = protocolOf('METRICS', env, log);
      const exporter = name === 'otlp' ? await METRIC_EXPORTERS[protocol]() : new ConsoleMetricExporter();
      const options = { exporter: withTemporality(exporter), exportIntervalMillis, exportTimeoutMillis };
      readers.push(new PeriodicExportingMetricReader(options));
    } else {
      log.warn(`OTEL_METRICS_EXPORTER: unknown exporter "${name}"; use otlp, console, prometheus or none`);
    }
  }
  return readers;
}

/**
 * The temporality of metrics. The SDK exports each series of a cumulative instrument for ever. An observed gauge gets
 * another one, so that the series of an ended condition ends; exports do not show the temporality of gauges.
 * @param otherwise - of all metrics but observed gauges
 */
export function temporalityOf(type: InstrumentType, otherwise: AggregationTemporality): AggregationTemporality {
  return type === InstrumentType.OBSERVABLE_GAUGE ? AggregationTemporality.DELTA : otherwise;
}

/** The exporter, whose own choice holds for all metrics but observed gauges. */
export function withTemporality<Exporter extends PushMetricExporter>(exporter: Exporter): Exporter {
  const own = exporter.selectAggregationTemporality?.bind(exporter);
  exporter.selectAggregationTemporality = (type) =>
    temporalityOf(type, own?.(type) ?? AggregationTemporality.CUMULATIVE);
  return exporter;
}

/** An option of the SDK that its type for the variables of the environment omits. */
interface Counted {
  readonly selfObsMeterProvider: MeterProvider;
}

/**
 * Processors that send spans, by OTEL_EXPORTER_OTLP_PROTOCOL and OTEL_BSP_*. Spans that the queue has no room for, and
 * spans that the collector has not accepted, are counted in `meterProvider`.
 */
export async function spanProcessors(
  { names, env, log }: ExporterSource,
  meterProvider: MeterProvider,
): Promise<SpanProcessor[]> {
  const processors: SpanProcessor[] = [];
  for (const name of names) {
    if (name === 'otlp') {
      const exporter = await SPAN_EXPORTERS[protocolOf('TRACES', env, log)]();
      const counted: BufferConfig & Counted = { selfObsMeterProvider: meterProvider };
      processors.push(new BatchSpanProcessor(exporter, counted));
    } else if (name === 'console') {
      processors.push(new SimpleSpanProcessor(new ConsoleSpanExporter()));
    } else {
      log.warn(`OTEL_TRACES_EXPORTER: unknown exporter "${name}"; use otlp, console or none`);
    }
  }
  return processors;
}

function protocolOf(signal: 'TRACES' | 'METRICS', env: NodeJS.ProcessEnv, log: Logger): Protocol {
  const variables = [`OTEL_EXPORTER_OTLP_${signal}_PROTOCOL`, 'OTEL_EXPORTER_OTLP_PROTOCOL'];
  const variable = variables.find((name) => (env[name] ?? '') !== '');
  const text = variable === undefined ? DEFAULT_PROTOCOL : (env[variable] ?? '').trim();
  if (text === 'grpc' || text === 'http/json' || text === 'http/protobuf') return text;
  log.warn(`${variable}: unknown protocol "${text}"; using ${DEFAULT_PROTOCOL}`);
  return DEFAULT_PROTOCOL;
}

function milliseconds(text: string | undefined, fallback: number): number {
  const value = Number(text);
  return text !== undefined && Number.isFinite(value) && value > 0 ? value : fallback;
}
