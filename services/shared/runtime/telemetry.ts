import { context, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { W3CBaggagePropagator, W3CTraceContextPropagator, CompositePropagator } from '@opentelemetry/core';
import { AlwaysOffSampler, BasicTracerProvider, ParentBasedSampler } from '@opentelemetry/sdk-trace-base';

/** Ends telemetry: sends what is not yet sent, within the SDK's own time limits. */
export type StopTelemetry = () => Promise<void>;

/**
 * Starts OpenTelemetry as the `OTEL_*` variables ask (opentelemetry.io, "Environment Variable Specification"). Called first in
 * `main.ts`; all other code uses the API only.
 *
 * Where no exporter is configured the SDK, 100 ms and 30 MB of modules, is not loaded: spans go nowhere, but W3C trace context
 * still comes in, goes out, and is in the log, so that one request can be followed through all processes.
 * @param service - the process's name in traces where OTEL_SERVICE_NAME gives none
 */
export async function startTelemetry(service: string, env: NodeJS.ProcessEnv): Promise<StopTelemetry> {
  if (!exportsTelemetry(env)) {
    propagateOnly();
    return () => Promise.resolve();
  }
  const { NodeSDK } = await import('@opentelemetry/sdk-node');
  const sdk = new NodeSDK({ serviceName: textOf(env, 'OTEL_SERVICE_NAME') ?? service });
  sdk.start();
  return () => sdk.shutdown();
}

function exportsTelemetry(env: NodeJS.ProcessEnv): boolean {
  if (env.OTEL_SDK_DISABLED?.toLowerCase() === 'true') return false;
  const askedBy = ['OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', 'OTEL_TRACES_EXPORTER'];
  return askedBy.some((name) => textOf(env, name) !== undefined);
}

/** A variable's text; the specification has an empty one mean the same as none. */
function textOf(env: NodeJS.ProcessEnv, name: string): string | undefined {
  return env[name] === '' ? undefined : env[name];
}

function propagateOnly(): void {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
  // A caller that records has to find its sampled flag again behind this process, or the rest of its trace is lost.
  const sampler = new ParentBasedSampler({ root: new AlwaysOffSampler() });
  trace.setGlobalTracerProvider(new BasicTracerProvider({ sampler }));
}
