import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import { createFileRegistry, fromBinary, toJson, type FileRegistry, type JsonValue } from '@bufbuild/protobuf';
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt';
import type { MethodDefinition } from '@grpc/grpc-js';
import { stringify } from 'yaml';

import type { OutputFormat } from './report.js';

/** Quotes times and words such as `no`, which readers of YAML 1.1 would not read as text. */
const YAML_OPTIONS = { compat: 'yaml-1.1', lineWidth: 0 } as const;

export function renderData(data: JsonValue, format: OutputFormat): string {
  return format === 'yaml' ? stringify(data, YAML_OPTIONS) : `${JSON.stringify(data, undefined, 2)}\n`;
}

/**
 * The contract's messages in protobuf's JSON form (ProtoJSON): field names in lowerCamelCase, constants by name, 64-bit numbers as
 * text, times in RFC 3339. Fields with their default value are written too, so that programs find them.
 */
export class ContractJson {
  #registry: FileRegistry | undefined;

  /** Converts an answer of a method. */
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
