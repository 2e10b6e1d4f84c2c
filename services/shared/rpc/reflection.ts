import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import type { Server } from '@grpc/grpc-js';
import { ReflectionService } from '@grpc/reflection';
import { BinaryReader } from '@bufbuild/protobuf/wire';

/** Number of the field `file` in google.protobuf.FileDescriptorSet. */
const FILE_FIELD = 1;

const HEALTH_SERVICE = 'grpc.health.v1.Health';

/**
 * Serves the contract to clients that have no files of it (grpcurl, `buf curl`): server reflection v1 and v1alpha over the
 * descriptors that `buf build` made.
 * @param services - full names of the services that this server offers
 */
export function addReflection(server: Server, services: readonly string[]): void {
  // The service wants what proto-loader would have loaded, and reads from it nothing but the descriptors. Those of
  // proto-loader lack their imports, so that no client can resolve a message with a Timestamp in it; buf's have them.
  const definitions = {
    image: {
      format: 'Protocol Buffer 3 EnumDescriptorProto' as const,
      type: {},
      fileDescriptorProtos: readDescriptors(),
    },
  };
  new ReflectionService(definitions, { services: [...services, HEALTH_SERVICE] }).addToServer(server);
}

function readDescriptors(): Buffer[] {
  const image = readFileSync(createRequire(import.meta.url).resolve('@podwire/proto/image.binpb'));
  const reader = new BinaryReader(image);
  const files: Buffer[] = [];
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (field === FILE_FIELD) files.push(Buffer.from(reader.bytes()));
    else reader.skip(wireType);
  }
  return files;
}
