import type { ServiceDefinition } from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';

/** In place of a request whose bytes are no message. gRPC would answer that the server has a fault. */
class Undecodable {
  readonly failure: Failure;

  constructor(path: string, reason: unknown) {
    const text = `${path.slice(1)}: the request cannot be decoded (${String(reason)}); send the message of the contract`;
    this.failure = new Failure('INVALID_REQUEST', text);
  }
}

/** The service with requests that {@link requireDecoded} refuses where they cannot be decoded. */
export function withUndecodable(service: ServiceDefinition): ServiceDefinition {
  const methods = Object.entries(service).map(([name, method]) => {
    const requestDeserialize = (bytes: Buffer): unknown => {
      try {
        return method.requestDeserialize(bytes);
      } catch (error) {
        return new Undecodable(method.path, error);
      }
    };
    return [name, { ...method, requestDeserialize }] as const;
  });
  return Object.fromEntries(methods);
}

/** @returns the request @throws Failure INVALID_REQUEST if its bytes were no message */
export function requireDecoded<Request>(request: Request): Request {
  if (request instanceof Undecodable) throw request.failure;
  return request;
}
