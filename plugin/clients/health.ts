import type { Peer } from '@podwire/shared/rpc/client';

import type { Limits } from './clients.js';

type Method<Request, Response> = Parameters<typeof Peer.prototype.call<Request, Response>>[0];

/** ServingStatus of grpc.health.v1. */
const SERVING = 1;

/** Tag of the only field of HealthCheckResponse: number 1, a varint. */
const STATUS_TAG = 0x08;

/** `grpc.health.v1.Health/Check` (gRPC Health Checking Protocol) of a whole server; its messages are a few bytes. */
const CHECK: Method<'server', number> = {
  path: '/grpc.health.v1.Health/Check',
  requestStream: false,
  responseStream: false,
  requestSerialize: () => Buffer.alloc(0),
  requestDeserialize: () => 'server',
  responseSerialize: (status) => Buffer.from([STATUS_TAG, status]),
  responseDeserialize: (bytes) => (bytes[0] === STATUS_TAG ? (bytes[1] ?? 0) : 0),
};

/**
 * Whether a service says that it serves.
 * @throws Failure UNREACHABLE or DEADLINE_EXCEEDED when it does not answer; UNIMPLEMENTED when it has no health service
 */
export async function isServing(peer: Peer, limits: Limits): Promise<boolean> {
  return (await peer.call(CHECK, 'server', limits)) === SERVING;
}
