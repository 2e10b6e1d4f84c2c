import { DryRunServiceService } from '@podwire/proto/podwire/ipam/v1/dry_run';
import { Failure } from '@podwire/shared/failure/failure';
import { decodeRequest } from '@podwire/shared/rpc/border';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary, type UnaryCall } from '@podwire/shared/rpc/unary';

type Execute = (request: Buffer, call: UnaryCall) => Promise<Buffer>;

/** @param prepare - makes the services for one dry run, which store nothing */
export function dryRunService(prepare: (unary: Unary) => unknown, unary: Unary): RpcService {
  return unaryService(DryRunServiceService, unary, {
    dryRun: async ({ path, request }, call) => {
      const execute = methodsOf(prepare).get(path);
      if (!execute) throw new Failure('INVALID_REQUEST', `DryRun: path "${path}" is not a method of IPAM; correct it`);
      return { response: await execute(request, call) };
    },
  });
}

function methodsOf(prepare: (unary: Unary) => unknown): ReadonlyMap<string, Execute> {
  const methods = new Map<string, Execute>();
  prepare((method, handler) => {
    const { path, responseSerialize } = method;
    methods.set(path, async (request, call) => responseSerialize(await handler(decodeRequest(method, request), call)));
    return () => undefined;
  });
  return methods;
}
