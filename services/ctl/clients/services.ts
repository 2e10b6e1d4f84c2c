import type { JsonValue } from '@bufbuild/protobuf';
import type { MethodDefinition } from '@grpc/grpc-js';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { PluginSocket } from './plugin-socket.js';

/** One of Podwire's gRPC services. */
export interface Service {
  /** @throws Failure the service's own, or UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED */
  call<Request, Response>(method: MethodDefinition<Request, Response>, request: Request): Promise<Response>;
}

/** What a command works with. A service is connected to with the first call. */
export interface Context {
  readonly ipam: Service;
  readonly dataplane: Service;
  readonly plugin: PluginSocket;
  readonly clock: Clock;
  /** An answer of a method in protobuf's JSON form. */
  readonly json: {
    of<Request, Response>(method: MethodDefinition<Request, Response>, answer: Response): JsonValue;
  };
}
