/** `Check` of grpc.health.v1, as a client calls it: for the whole server. Its answer is the status: 1 serving, 2 not serving. */
export const HEALTH = {
  path: '/grpc.health.v1.Health/Check',
  requestStream: false,
  responseStream: false,
  requestSerialize: () => Buffer.alloc(0),
  requestDeserialize: () => null,
  responseSerialize: () => Buffer.alloc(0),
  // The status is the message's only field.
  responseDeserialize: (bytes: Buffer) => bytes.at(1),
} as const;
