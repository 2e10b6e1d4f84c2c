import { context, diag, DiagLogLevel, metrics, propagation, ROOT_CONTEXT, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import {
  CompositePropagator,
  diagLogLevelFromString,
  W3CBaggagePropagator,
  W3CTraceContextPropagator,
} from '@opentelemetry/core';
import type { Resource } from '@opentelemetry/resources';
import { AlwaysOffSampler, BasicTracerProvider, ParentBasedSampler } from '@opentelemetry/sdk-trace-base';

import { messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { readRelease } from '../runtime/process-release.js';
import { observeProcess } from './process-metrics.js';
import { PodwireTracerProvider } from './tracer-provider.js';

/**
 * Stops telemetry: exports the spans and metrics of the last seconds, with the timeout {@link EXPORT_AT_STOP_MS}. Never rejects.
 * A socket or timer of the SDK may still be open after a timeout, so the caller has to end the process.
 */
export type StopTelemetry = () => Promise<void>;

/**
 * Timeout of the last export. If the collector is down, the SDK would retry for 10 s, and a restart of the process would wait for
 * it.
 */
const EXPORT_AT_STOP_MS = 500;

const MAX_PORT = 65_535;

type Signal = 'TRACES' | 'METRICS';

/** An outage of a collector is logged again after this time, in milliseconds. */
const REPEAT_MS = 600_000;
const TEXTS_MAX = 100;
const TEXT_MAX_LENGTH = 300;

export interface TelemetrySource {
  /** The service name in traces and metrics, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES sets one. */
  readonly service: string;
  /** Distinguishes this process from other processes of the same service; the same after a restart. */
  readonly instance: string;
  /** The Kubernetes node, for a process that serves one node. */
  readonly nodeName?: string;
  /** The port of the Prometheus endpoint, unless OTEL_EXPORTER_PROMETHEUS_PORT sets one. */
  readonly metricsPort: number;
  /** File with the bearer token that the Prometheus endpoint requires; empty for none. */
  readonly metricsTokenFile?: string;
  /** Second names of metrics at the Prometheus endpoint. */
  readonly aliases?: Readonly<Record<string, string>>;
  /** The process's environment, which the SDK also reads itself. */
  readonly env: NodeJS.ProcessEnv;
  readonly clock: Clock;
  /** Receives the SDK's diagnostics: an unknown exporter, an unreachable collector. */
  readonly log: Logger;
}

/**
 * Starts OpenTelemetry as configured by the `OTEL_*` variables (opentelemetry.io, "Environment Variable Specification";
 * README.md lists them). Called before the parts of a service are made: an instrument made earlier would stay without
 * effect. All other code uses the API only.
 *
 * Metrics are served to Prometheus on the loopback address by default, and nothing is sent. W3C trace context is received,
 * propagated and logged in any case, so that a request can be followed through all processes.
 */
export async function startTelemetry(source: TelemetrySource): Promise<StopTelemetry> {
  const { env, log, clock } = source;
  const spans = exportersOf('TRACES', env, []);
  const values = exportersOf('METRICS', env, ['prometheus']);
  if (spans.length === 0) propagateTraces();
  else propagateContext();
  if (spans.length === 0 && values.length === 0) return () => Promise.resolve();
  forwardDiagnostics(env, log, clock);
  const version = await readRelease();
  const resource = await resourceOf(source, version);
  const stopMetrics = values.length > 0 ? await startMetrics(values, resource, source) : undefined;
  if (stopMetrics) observeProcess(version);
  const stopTraces = spans.length > 0 ? await startTraces(spans, resource, source) : undefined;
  const stop = async (): Promise<void> => {
    // The last export of metrics counts the spans that were lost.
    await (stopTraces?.() ?? Promise.resolve()).finally(stopMetrics);
  };
  return () => exportAtStop(stop, log);
}

/** Attributes that are the same after a restart: an attribute that changes would make new series at each restart. */
async function resourceOf({ service, instance, nodeName }: TelemetrySource, version: string): Promise<Resource> {
  const { defaultResource, detectResources, envDetector, hostDetector, resourceFromAttributes } =
    await import('@opentelemetry/resources');
  const detected = detectResources({ detectors: [hostDetector, envDetector] });
  // Wait for the attributes: otherwise a scrape that reads the attributes before they are ready logs a warning.
  await detected.waitForAsyncAttributes?.();
  const own = resourceFromAttributes({
    'service.name': service,
    'service.namespace': 'podwire',
    'service.version': version,
    'service.instance.id': instance,
    ...(nodeName !== undefined && { 'k8s.node.name': nodeName }),
  });
  return defaultResource().merge(own).merge(detected);
}

/** Metrics of this process, once it serves them; the meter provider is global too. */
let currentPage: (() => Promise<string>) | undefined;

/** All metrics of this process in Prometheus' text format; says so where it serves none. */
export async function metricsPage(): Promise<string> {
  return (await currentPage?.()) ?? 'this process serves no metrics\n';
}

async function startMetrics(
  exporters: readonly string[],
  resource: Resource,
  source: TelemetrySource,
): Promise<StopTelemetry> {
  const { env, log, clock, aliases = {}, metricsPort, metricsTokenFile: tokenFile = '' } = source;
  const [{ MeterProvider }, { metricReaders }, { PrometheusEndpoint }] = await Promise.all([
    import('@opentelemetry/sdk-metrics'),
    import('./exporters.js'),
    import('./prometheus.js'),
  ]);
  const host = textOf(env, 'OTEL_EXPORTER_PROMETHEUS_HOST') ?? '127.0.0.1';
  const port = portOf(env, metricsPort, log);
  const isScraped = exporters.includes('prometheus');
  const endpoint = isScraped ? new PrometheusEndpoint({ host, port, aliases, tokenFile, log, clock }) : undefined;
  const pushed = await metricReaders({ names: exporters.filter((name) => name !== 'prometheus'), env, log });
  const provider = new MeterProvider({ resource, readers: [...(endpoint ? [endpoint.reader] : []), ...pushed] });
  metrics.setGlobalMeterProvider(provider);
  await endpoint?.start();
  currentPage = endpoint && (() => endpoint.text());
  return async () => {
    currentPage = undefined;
    await endpoint?.stop();
    await provider.shutdown();
  };
}

async function startTraces(
  names: readonly string[],
  resource: Resource,
  source: TelemetrySource,
): Promise<StopTelemetry> {
  const { env, log, clock } = source;
  const { spanProcessors } = await import('./exporters.js');
  const processors = await spanProcessors({ names, env, log }, metrics.getMeterProvider());
  // Samples by OTEL_TRACES_SAMPLER, which the SDK reads itself.
  const provider = new BasicTracerProvider({ resource, spanProcessors: processors });
  trace.setGlobalTracerProvider(new PodwireTracerProvider(provider, clock));
  return () => provider.shutdown();
}

function portOf(env: NodeJS.ProcessEnv, fallback: number, log: Logger): number {
  const text = textOf(env, 'OTEL_EXPORTER_PROMETHEUS_PORT');
  if (text === undefined) return fallback;
  if (/^\d{1,5}$/.test(text) && Number(text) <= MAX_PORT) return Number(text);
  log.warn(`OTEL_EXPORTER_PROMETHEUS_PORT: "${text}" is not a port; using ${fallback}`);
  return fallback;
}

async function exportAtStop(shutdown: () => Promise<void>, log: Logger): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<string>((resolve) => {
    timer = setTimeout(() => resolve(`no answer within ${EXPORT_AT_STOP_MS} ms`), EXPORT_AT_STOP_MS);
  });
  const exported = shutdown().then(() => undefined, messageOf);
  const failure = await Promise.race([exported, timeout]);
  clearTimeout(timer);
  if (failure === undefined) return;
  log.warn(`OpenTelemetry: spans and metrics of the last seconds are lost: ${failure}; check the collector`);
}

function isDisabled(env: NodeJS.ProcessEnv): boolean {
  return textOf(env, 'OTEL_SDK_DISABLED')?.toLowerCase() === 'true';
}

/** @returns the names of exporters; without a variable for them `defaults`, and OTLP if it has an endpoint */
function exportersOf(signal: Signal, env: NodeJS.ProcessEnv, defaults: readonly string[]): readonly string[] {
  if (isDisabled(env)) return [];
  const exporters = textOf(env, `OTEL_${signal}_EXPORTER`);
  if (exporters === undefined) return hasOtlpEndpoint(signal, env) ? [...defaults, 'otlp'] : defaults;
  return namesIn(exporters).includes('none') ? [] : namesIn(exporters);
}

function namesIn(text: string): string[] {
  return text.split(',').map((name) => name.trim());
}

function hasOtlpEndpoint(signal: Signal, env: NodeJS.ProcessEnv): boolean {
  const names = ['OTEL_EXPORTER_OTLP_ENDPOINT', `OTEL_EXPORTER_OTLP_${signal}_ENDPOINT`];
  return names.some((name) => textOf(env, name) !== undefined);
}

/** A variable's text; undefined for an empty one, which the specification treats as unset. */
function textOf(env: NodeJS.ProcessEnv, name: string): string | undefined {
  const text = env[name]?.trim();
  return text === '' ? undefined : text;
}

/** The first line, without the stack and the headers that the SDK appends as JSON. */
function diagnosticText(text: string): string {
  const message = /"message":"((?:[^"\\]|\\.)*)"/.exec(text)?.[1] ?? text;
  return message.split('\n', 1)[0]?.slice(0, TEXT_MAX_LENGTH) ?? '';
}

/** A message is logged at most once in {@link REPEAT_MS}: the SDK repeats it with each failed export. */
function forwardDiagnostics(env: NodeJS.ProcessEnv, log: Logger, clock: Clock): void {
  const level = textOf(env, 'OTEL_LOG_LEVEL');
  const logLevel = (level === undefined ? undefined : diagLogLevelFromString(level)) ?? DiagLogLevel.WARN;
  const loggedMs = new Map<string, number>();
  const at =
    (write: 'warn' | 'info' | 'debug' | 'trace') =>
    (message: string, ...rest: readonly unknown[]): void => {
      const text = diagnosticText([message, ...rest.map(String)].join(' '));
      const nowMs = clock.monotonicMs();
      if (nowMs - (loggedMs.get(text) ?? -Infinity) < REPEAT_MS) return;
      if (loggedMs.size >= TEXTS_MAX) loggedMs.clear();
      loggedMs.set(text, nowMs);
      // Not in the trace of the request during which the SDK noticed it.
      context.with(ROOT_CONTEXT, () => log[write](`OpenTelemetry: ${text}`));
    };
  // Errors of the SDK are logged as warnings, because Podwire works without telemetry.
  const logger = { error: at('warn'), warn: at('warn'), info: at('info'), debug: at('debug'), verbose: at('trace') };
  diag.setLogger(logger, { logLevel, suppressOverrideMessage: true });
}

/** Propagates traces without recording them, so that services log each call with its trace. */
export function propagateTraces(): void {
  propagateContext();
  // Keeps the caller's sampled flag. Without it, the services called by this process would not record the caller's trace.
  const sampler = new ParentBasedSampler({ root: new AlwaysOffSampler() });
  trace.setGlobalTracerProvider(new BasicTracerProvider({ sampler }));
}

function propagateContext(): void {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
}
