import { context, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { W3CBaggagePropagator, W3CTraceContextPropagator, CompositePropagator } from '@opentelemetry/core';
import { AlwaysOffSampler, BasicTracerProvider } from '@opentelemetry/sdk-trace-base';

/** Ends telemetry: sends what is not yet sent, within the SDK's own time limits. */
export type StopTelemetry = () => Promise<void>;

/**
 * Starts OpenTelemetry as the `OTEL_*` variables ask (opentelemetry.io, "Environment Variable Specification"). Called first in
 * `main.ts`; all other code uses the API only.
 *
 * Where no exporter is configured the SDK, 100 ms and 30 MB of modules, is not loaded: spans are not recorded, but
 * trace context still comes in, goes out, and is in the log, so that one request can be followed through all processes.
 */
export async function startTelemetry(service: string, env: NodeJS.ProcessEnv): Promise<StopTelemetry> {
  if (!exportsTelemetry(env)) {
    propagateOnly();
    return () => Promise.resolve();
  }
  const { NodeSDK } = await import('@opentelemetry/sdk-node');
  const sdk = new NodeSDK({ serviceName: env.OTEL_SERVICE_NAME ?? service });
  sdk.start();
  return () => sdk.shutdown();
}

function exportsTelemetry(env: NodeJS.ProcessEnv): boolean {
  if (env.OTEL_SDK_DISABLED?.toLowerCase() === 'true') return false;
  const asked = (name: string) => (env[name] ?? '') !== '';
  return (
    asked('OTEL_EXPORTER_OTLP_ENDPOINT') || asked('OTEL_EXPORTER_OTLP_TRACES_ENDPOINT') || asked('OTEL_TRACES_EXPORTER')
  );
}

function propagateOnly(): void {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
  trace.setGlobalTracerProvider(new BasicTracerProvider({ sampler: new AlwaysOffSampler() }));
}
