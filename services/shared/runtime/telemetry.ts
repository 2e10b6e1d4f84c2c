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
import type { Logger } from './log.js';

/**
 * Ends telemetry: exports the spans and metrics of the last seconds, within {@link EXPORT_AT_STOP_MS} for all of them. Never rejects.
 * An export that was cut off may still have a socket or a timer open, so the caller ends the process.
 */
export type StopTelemetry = () => Promise<void>;

/**
 * Time limit of the last export. The SDK retries for its own 10 s when the collector is down, and the next process of the name can
 * start only when this one has ended.
 */
const EXPORT_AT_STOP_MS = 500;

export interface TelemetrySource {
  /** The process's name in traces and metrics where neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES gives one. */
  readonly service: string;
  /** The process's environment, which the SDK reads directly; OTEL_LOG_LEVEL is removed from it. */
  readonly env: NodeJS.ProcessEnv;
  /** Receives the SDK's diagnostics: an unknown exporter, an unreachable collector. */
  readonly log: Logger;
}

/**
 * Starts OpenTelemetry as configured by the `OTEL_*` variables (opentelemetry.io, "Environment Variable Specification";
 * README.md lists them). Called first in `main.ts`; all other code uses the API only.
 *
 * A signal without configuration is not exported, although the specification's default is a local collector. With no
 * signal configured, the SDK (100 ms, 30 MB of modules) is not loaded. Without exported spans, W3C trace context is
 * still received, forwarded and logged, so that one request can be followed through all processes.
 */
export async function startTelemetry({ service, env, log }: TelemetrySource): Promise<StopTelemetry> {
  const [traces, metrics] = [isExported('TRACES', env), isExported('METRICS', env)];
  if (!traces && !metrics) {
    propagateTraces();
    return () => Promise.resolve();
  }
  const { NodeSDK, resources } = await import('@opentelemetry/sdk-node');
  reportComplaints(env, log);
  // If set, the SDK installs its own logger, whose lines are not JSON.
  env.OTEL_LOG_LEVEL = '';
  const { detectResources, envDetector, processDetector, hostDetector } = resources;
  const detected = detectResources({ detectors: [envDetector, processDetector, hostDetector] });
  // Otherwise each Prometheus scrape reads the attributes before they are ready, and logs a warning.
  await detected.waitForAsyncAttributes?.();
  const own = resources.resourceFromAttributes({ 'service.name': service });
  const sdk = new NodeSDK({
    resource: resources.defaultResource().merge(own).merge(detected),
    autoDetectResources: false,
    ...(!traces && { spanProcessors: [] }),
    ...(!metrics && { metricReaders: [] }),
    // The log goes to standard error, where container log collectors read it.
    logRecordProcessors: [],
  });
  sdk.start();
  if (!traces) passTracesOn();
  return () => exportTheRest(() => sdk.shutdown(), log);
}

async function exportTheRest(shutdown: () => Promise<void>, log: Logger): Promise<void> {
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

/** A variable's text; the specification has an empty one mean the same as none. */
function textOf(env: NodeJS.ProcessEnv, name: string): string | undefined {
  const text = env[name]?.trim();
  return text === '' ? undefined : text;
}

function reportComplaints(env: NodeJS.ProcessEnv, log: Logger): void {
  const level = textOf(env, 'OTEL_LOG_LEVEL');
  const logLevel = (level === undefined ? undefined : diagLogLevelFromString(level)) ?? DiagLogLevel.WARN;
  const at =
    (write: 'warn' | 'info' | 'debug' | 'trace') =>
    (message: string, ...rest: readonly unknown[]) =>
      log[write](`OpenTelemetry: ${[message, ...rest.map(String)].join(' ')}`);
  // Nothing of Podwire fails with its telemetry, so that the SDK's errors are warnings here.
  const logger = { error: at('warn'), warn: at('warn'), info: at('info'), debug: at('debug'), verbose: at('trace') };
  diag.setLogger(logger, { logLevel, suppressOverrideMessage: true });
}

/**
 * Gives each call a trace, which services log it under, and exports nothing: for short-lived programs, and for
 * processes without a configured exporter.
 */
export function propagateTraces(): void {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
  passTracesOn();
}

/** Propagates trace context without recording spans. */
function passTracesOn(): void {
  // A caller that records has to find its sampled flag again behind this process, or the rest of its trace is lost.
  const sampler = new ParentBasedSampler({ root: new AlwaysOffSampler() });
  trace.setGlobalTracerProvider(new BasicTracerProvider({ sampler }));
}
