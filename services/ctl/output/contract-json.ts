import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import { createFileRegistry, fromBinary, toJson, type FileRegistry, type JsonValue } from '@bufbuild/protobuf';
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt';
import type { MethodDefinition } from '@grpc/grpc-js';

/**
 * The contract's messages in protobuf's JSON form (ProtoJSON): field names in lowerCamelCase, constants by name, 64-bit numbers as
 * text, times in RFC 3339. Fields that have their default are written too, so that a program finds them.
 */
export class ContractJson {
  #registry: FileRegistry | undefined;

  /** An answer of a method. */
  of<Request, Response>(method: MethodDefinition<Request, Response>, answer: Response): JsonValue {
    const [, service = '', name] = method.path.split('/');
    const registry = (this.#registry ??= readContract());
    const message = registry.getService(service)?.methods.find((each) => each.name === name)?.output;
    if (!message) throw new Error(`the contract does not describe ${method.path}`);
    const bytes = method.responseSerialize(answer);
    return toJson(message, fromBinary(message, bytes), { registry, alwaysEmitImplicit: true });
  }
}

function readContract(): FileRegistry {
  const image = readFileSync(createRequire(import.meta.url).resolve('@podwire/proto/image.binpb'));
  return createFileRegistry(fromBinary(FileDescriptorSetSchema, image));
}
