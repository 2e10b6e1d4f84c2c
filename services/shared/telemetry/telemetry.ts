import { context, diag, DiagLogLevel, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import {
  CompositePropagator,
  diagLogLevelFromString,
  W3CBaggagePropagator,
  W3CTraceContextPropagator,
} from '@opentelemetry/core';
import { AlwaysOffSampler, BasicTracerProvider, ParentBasedSampler } from '@opentelemetry/sdk-trace-base';

import { messageOf } from '../failure/thrown.js';
import type { Logger } from '../runtime/log.js';

/**
 * Stops telemetry: exports the spans and metrics of the last seconds, with the timeout {@link EXPORT_AT_STOP_MS}. Never rejects.
 * After a timeout, a socket or timer of the SDK may still be open, so the caller has to end the process.
 */
export type StopTelemetry = () => Promise<void>;

/**
 * Timeout of the last export. If the collector is down, the SDK would retry for 10 s, and a restart of the process would wait for
 * it.
 */
const EXPORT_AT_STOP_MS = 500;

export interface TelemetrySource {
  /** The service name in traces and metrics, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES sets one. */
  readonly service: string;
  /** The process's environment, which the SDK also reads itself. OTEL_LOG_LEVEL is cleared in it. */
  readonly env: NodeJS.ProcessEnv;
  /** Receives the SDK's diagnostics: an unknown exporter, an unreachable collector. */
  readonly log: Logger;
}

/**
 * Starts OpenTelemetry as configured by the `OTEL_*` variables (opentelemetry.io, "Environment Variable Specification";
 * README.md lists them). Called before the parts of a service are made: an instrument made earlier would stay without
 * effect. All other code uses the API only.
 *
 * A signal without configuration is not exported, although the specification's default is a local collector. With no
 * signal configured, the SDK, which takes 100 ms and 30 MB, is not loaded. Without exported spans, W3C trace context is
 * still received, propagated and logged, so that a request can be followed through all processes.
 */
export async function startTelemetry({ service, env, log }: TelemetrySource): Promise<StopTelemetry> {
  const [traces, metrics] = [isExported('TRACES', env), isExported('METRICS', env)];
  if (!traces && !metrics) {
    propagateTraces();
    return () => Promise.resolve();
  }
  const { NodeSDK, resources } = await import('@opentelemetry/sdk-node');
  forwardDiagnostics(env, log);
  // If it were set, the SDK would install its own logger, whose lines are not JSON.
  env.OTEL_LOG_LEVEL = '';
  const { detectResources, envDetector, processDetector, hostDetector } = resources;
  const detected = detectResources({ detectors: [envDetector, processDetector, hostDetector] });
  // Without it, a Prometheus scrape that reads the attributes before they are ready logs a warning.
  await detected.waitForAsyncAttributes?.();
  const own = resources.resourceFromAttributes({ 'service.name': service });
  const sdk = new NodeSDK({
    resource: resources.defaultResource().merge(own).merge(detected),
    autoDetectResources: false,
    ...(!traces && { spanProcessors: [] }),
    ...(!metrics && { metricReaders: [] }),
    // Logs are not exported: they go to standard error, where log collectors read them.
    logRecordProcessors: [],
  });
  sdk.start();
  if (!traces) propagateWithoutRecording();
  return () => exportAtStop(() => sdk.shutdown(), log);
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

function isExported(signal: 'TRACES' | 'METRICS', env: NodeJS.ProcessEnv): boolean {
  if (textOf(env, 'OTEL_SDK_DISABLED')?.toLowerCase() === 'true') return false;
  const exporters = textOf(env, `OTEL_${signal}_EXPORTER`);
  if (exporters !== undefined) return !exporters.split(',').some((name) => name.trim() === 'none');
  const endpoints = ['OTEL_EXPORTER_OTLP_ENDPOINT', `OTEL_EXPORTER_OTLP_${signal}_ENDPOINT`];
  return endpoints.some((name) => textOf(env, name) !== undefined);
}

/** A variable's text; undefined for an empty one, which the specification treats as unset. */
function textOf(env: NodeJS.ProcessEnv, name: string): string | undefined {
  const text = env[name]?.trim();
  return text === '' ? undefined : text;
}

function forwardDiagnostics(env: NodeJS.ProcessEnv, log: Logger): void {
  const level = textOf(env, 'OTEL_LOG_LEVEL');
  const logLevel = (level === undefined ? undefined : diagLogLevelFromString(level)) ?? DiagLogLevel.WARN;
  const at =
    (write: 'warn' | 'info' | 'debug' | 'trace') =>
    (message: string, ...rest: readonly unknown[]) =>
      log[write](`OpenTelemetry: ${[message, ...rest.map(String)].join(' ')}`);
  // Errors of the SDK are logged as warnings, because Podwire works without telemetry.
  const logger = { error: at('warn'), warn: at('warn'), info: at('info'), debug: at('debug'), verbose: at('trace') };
  diag.setLogger(logger, { logLevel, suppressOverrideMessage: true });
}

/**
 * Propagates traces without exporting them, so that services log each call with its trace. For short-lived programs, and for
 * processes without a configured exporter.
 */
export function propagateTraces(): void {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
  propagateWithoutRecording();
}

/** Propagates trace context without recording spans. */
function propagateWithoutRecording(): void {
  // Keeps the caller's sampled flag. Without it, the services called by this process would not record the caller's trace.
  const sampler = new ParentBasedSampler({ root: new AlwaysOffSampler() });
  trace.setGlobalTracerProvider(new BasicTracerProvider({ sampler }));
}
