import {
  propagation,
  ROOT_CONTEXT,
  type Attributes,
  type Context,
  type TextMapGetter,
  type TextMapSetter,
} from '@opentelemetry/api';
import { Metadata, status } from '@grpc/grpc-js';

import { histogram, onFirstUse } from '../telemetry/instruments.js';

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

/** Metadata by which a client asks for the intervals of a call, and a server returns them. */
const TIMING_KEY = 'podwire-timing';

export function askForTiming(metadata: Metadata): void {
  metadata.set(TIMING_KEY, 'true');
}

/** @returns undefined where the other side gave none */
export function timingOf(metadata: Metadata): string | undefined {
  const [text] = metadata.get(TIMING_KEY);
  return text?.toString();
}

/** Metadata of a response with the intervals of its call. */
export function timingMetadata(text: string): Metadata {
  const metadata = new Metadata();
  metadata.set(TIMING_KEY, text);
  return metadata;
}

/** Attributes of a call's span (OpenTelemetry semantic conventions 1.44, RPC). `path` is `/package.Service/Method`. */
export function rpcAttributes(path: string) {
  return { 'rpc.system.name': 'grpc', 'rpc.method': methodName(path) } as const;
}

/** Attributes of the server of a call (OpenTelemetry semantic conventions 1.44). @param address - `unix:/path` or `host:port` */
export function serverAttributes(address: string): Attributes {
  const [, path] = /^unix:(.+)$/.exec(address) ?? [];
  if (path !== undefined) return { 'server.address': path, 'network.transport': 'unix' };
  const [, host = address, port] = /^\[?(.*?)\]?:(\d+)$/.exec(address) ?? [];
  return { 'server.address': host, ...(port !== undefined && { 'server.port': Number(port) }) };
}

/** The method's full name, which is also its span's: `package.Service/Method`. */
export function methodName(path: string): string {
  return path.slice(1);
}

const MS_PER_SECOND = 1000;

const callDurations = {
  server: onFirstUse(() => histogram('rpc.server.call.duration')),
  client: onFirstUse(() => histogram('rpc.client.call.duration')),
};

interface CallEnd {
  /** `/package.Service/Method`. */
  readonly path: string;
  readonly code: status;
  readonly durationMs: number;
}

/** Records the time of a call, sampled or not. */
export function recordCall(side: 'server' | 'client', { path, code, durationMs }: CallEnd): void {
  const attributes = { 'rpc.response.status_code': status[code], ...rpcAttributes(path) };
  callDurations[side]().record(durationMs / MS_PER_SECOND, attributes);
}
