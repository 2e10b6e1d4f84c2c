import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import type {
  MethodDefinition,
  Server,
  ServerDuplexStream,
  ServiceDefinition,
  UntypedHandleCall,
  UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { ReflectionService } from '@grpc/reflection';
import { BinaryReader } from '@bufbuild/protobuf/wire';

/** Number of the field `file` in google.protobuf.FileDescriptorSet. */
const FILE_FIELD = 1;

const HEALTH_SERVICE = 'grpc.health.v1.Health';

const REFLECTION_SERVICES = ['grpc.reflection.v1.ServerReflection', 'grpc.reflection.v1alpha.ServerReflection'];

/** The only method of each of them. */
const METHOD = 'ServerReflectionInfo';

/** A method of `@grpc/reflection`. */
interface Served {
  readonly definition: MethodDefinition<unknown, unknown>;
  readonly handler: UntypedHandleCall;
}

/**
 * Adds server reflection v1 and v1alpha for clients without the proto files (grpcurl, `buf curl`). The descriptors of `buf
 * build` take 12 MiB, and are loaded on first use.
 * @param services - full names of the services that this server offers
 */
export function addReflection(server: Server, services: readonly string[]): void {
  let methods: ReadonlyMap<string, Served> | undefined;
  for (const service of REFLECTION_SERVICES) {
    const path = `/${service}/${METHOD}`;
    const served = (): Served => {
      methods ??= reflectionOf(services);
      const method = methods.get(path);
      if (!method) throw new Error(`@grpc/reflection does not serve ${path}`);
      return method;
    };
    const definition: MethodDefinition<unknown, unknown> = {
      path,
      requestStream: true,
      responseStream: true,
      requestSerialize: (message) => served().definition.requestSerialize(message),
      requestDeserialize: (bytes) => served().definition.requestDeserialize(bytes),
      responseSerialize: (message) => served().definition.responseSerialize(message),
      responseDeserialize: (bytes) => served().definition.responseDeserialize(bytes),
    };
    const handler = (stream: ServerDuplexStream<unknown, unknown>): void => {
      Reflect.apply(served().handler, undefined, [stream]);
    };
    server.addService({ [METHOD]: definition }, { [METHOD]: handler });
  }
}

/** The methods of `@grpc/reflection`, by their paths. */
function reflectionOf(services: readonly string[]): ReadonlyMap<string, Served> {
  // The service expects the result of proto-loader, and reads only its descriptors. proto-loader's lack their
  // imports, so that clients cannot resolve a message with a Timestamp. buf's include them.
  const definitions = {
    image: {
      format: 'Protocol Buffer 3 EnumDescriptorProto' as const,
      type: {},
      fileDescriptorProtos: readDescriptors(),
    },
  };
  const methods = new Map<string, Served>();
  const addService = (definitionOf: ServiceDefinition, implementation: UntypedServiceImplementation): void => {
    for (const [name, definition] of Object.entries(definitionOf)) {
      const handler = implementation[name];
      if (handler) methods.set(definition.path, { definition, handler });
    }
  };
  new ReflectionService(definitions, { services: [...services, HEALTH_SERVICE] }).addToServer({ addService });
  return methods;
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
