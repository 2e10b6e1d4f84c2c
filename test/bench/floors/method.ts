import type { MethodDefinition } from '@grpc/grpc-js';

const same = (bytes: Buffer) => bytes;

/** The one method of a floor's service: bytes for bytes, without a codec. */
export const DO: MethodDefinition<Buffer, Buffer> = {
  path: '/podwire.bench.Floor/Do',
  requestStream: false,
  responseStream: false,
  requestSerialize: same,
  requestDeserialize: same,
  responseSerialize: same,
  responseDeserialize: same,
};
