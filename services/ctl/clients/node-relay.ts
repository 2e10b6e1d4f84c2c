import type { MethodDefinition } from '@grpc/grpc-js';
import { ClusterServiceService, HttpResponse, type NodeRequest } from '@podwire/proto/podwire/ipam/v1/cluster';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { PluginAnswer, PluginRequest } from './plugin-socket.js';
import type { GrpcService, Service } from './services.js';

interface NodeRelayOptions {
  readonly ipam: Pick<GrpcService, 'address' | 'stream'>;
  readonly nodeName: string;
  readonly clock: Clock;
  /** Deadline of the command, in epoch milliseconds. */
  readonly deadlineMs: () => number;
}

/** The programs of another node, called through podwire-ipam. Methods throw Failure of the node, of podwire-ipam, or of the way to it. */
export class NodeRelay implements Service {
  readonly #options: NodeRelayOptions;

  constructor(options: NodeRelayOptions) {
    this.#options = options;
  }

  get address(): string {
    const { nodeName, ipam } = this.#options;
    return `node ${nodeName} through ${ipam.address}`;
  }

  async call<Request, Response>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Response>,
    request: Request,
  ): Promise<Response> {
    const call = { path, body: requestSerialize(request), httpMethod: '', httpHeaders: {} };
    return responseDeserialize(await this.#call(call));
  }

  /** The messages of a stream, each of which arrives behind its length in 4 bytes. */
  async *stream<Request, Response>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Response>,
    request: Request,
  ): AsyncGenerator<Response, void, void> {
    let rest = Buffer.alloc(0);
    const call = { path, body: requestSerialize(request), httpMethod: '', httpHeaders: {} };
    for await (const part of this.#parts(call)) {
      rest = Buffer.concat([rest, part]);
      while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32BE()) {
        const end = 4 + rest.readUInt32BE();
        yield responseDeserialize(rest.subarray(4, end));
        rest = rest.subarray(end);
      }
    }
  }

  /** A request to the server of CNI commands. */
  async exchange({ method: httpMethod, path, headers, body = '' }: PluginRequest): Promise<PluginAnswer> {
    const request = { path, httpMethod, httpHeaders: { ...headers }, body: Buffer.from(body) };
    const answer = HttpResponse.decode(await this.#call(request));
    return { status: answer.status, body: answer.body.toString() };
  }

  async #call(request: NodeRequest): Promise<Buffer> {
    const parts: Buffer[] = [];
    for await (const part of this.#parts(request)) parts.push(part);
    return Buffer.concat(parts);
  }

  async *#parts(request: NodeRequest): AsyncGenerator<Buffer, void, void> {
    const { ipam, nodeName, clock, deadlineMs } = this.#options;
    const timeoutMs = Math.max(1, Math.round(deadlineMs() - clock.nowMs()));
    const call = { nodeName, request, timeoutMs };
    for await (const { part } of ipam.stream(ClusterServiceService.callNode, call)) yield part;
  }
}
