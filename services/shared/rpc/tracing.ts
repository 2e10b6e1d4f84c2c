import { propagation, ROOT_CONTEXT, type Context, type TextMapGetter, type TextMapSetter } from '@opentelemetry/api';
import type { Metadata } from '@grpc/grpc-js';

/** W3C trace context in gRPC metadata, incoming and outgoing. */

const getter: TextMapGetter<Metadata> = {
  keys: (metadata) => Object.keys(metadata.getMap()),
  get: (metadata, key) => metadata.get(key).map(String),
};

const setter: TextMapSetter<Metadata> = {
  set: (metadata, key, value) => metadata.set(key, value),
};

/** The caller's trace context from metadata, independent of the active context. */
export function contextOf(metadata: Metadata): Context {
  return propagation.extract(ROOT_CONTEXT, metadata, getter);
}

/** Writes a trace context into the metadata of a call. */
export function injectContext(from: Context, metadata: Metadata): void {
  propagation.inject(from, metadata, setter);
}

/** Attributes of a call's span (OpenTelemetry semantic conventions 1.44, RPC). `path` is `/package.Service/Method`. */
export function rpcAttributes(path: string) {
  return { 'rpc.system.name': 'grpc', 'rpc.method': methodName(path) } as const;
}

/** The method's full name, which is also its span's: `package.Service/Method`. */
export function methodName(path: string): string {
  return path.slice(1);
}
