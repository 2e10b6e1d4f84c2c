import { request as httpRequest } from 'node:http';

import { NetworkPolicyServiceService } from '@podwire/proto/podwire/dataplane/v1/network_policy';
import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import { DiagnosticsServiceService } from '@podwire/proto/podwire/diagnostics/v1/diagnostics';
import { ProbeServiceService } from '@podwire/proto/podwire/dataplane/v1/probe';
import { HttpResponse, type NodeRequest } from '@podwire/proto/podwire/ipam/v1/cluster';
import { ReleaseServiceService } from '@podwire/proto/podwire/release/v1/release';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

/** Methods that podwirectl calls on a node. Pods of workloads are added by the node's container runtime only. */
const METHODS: readonly string[] = [
  NetworkPolicyServiceService.listPolicyDrops,
  NodeServiceService.getNodeStatus,
  PodServiceService.checkPod,
  PodServiceService.detachPod,
  PodServiceService.listPods,
  PodServiceService.repairPod,
  ProbeServiceService.addProbePod,
  ProbeServiceService.deleteProbePods,
  ProbeServiceService.runProbes,
  ProbeServiceService.tracePackets,
  ReleaseServiceService.getRelease,
].map(({ path }) => path);

/** Methods with many response messages. */
const STREAMS: readonly string[] = [DiagnosticsServiceService.collect.path];

/** Requests to the server of CNI commands. */
const ROUTES: readonly string[] = ['GET /commands', 'GET /journal', 'POST /journal/retry', 'POST /journal/discard'];

export interface OperatorCallsOptions {
  /** Address of the dataplane's gRPC server: `unix:/path`. */
  readonly dataplane: string;
  /** Absolute path of the CNI server's socket. */
  readonly cniSocket: string;
  readonly clock: Clock;
}

/** Executes calls of operators that arrive through podwire-ipam, on this process's own sockets, as podwirectl does on the node. */
export class OperatorCalls {
  readonly #options: OperatorCallsOptions;
  readonly #dataplane: Peer;

  constructor(options: OperatorCallsOptions) {
    this.#options = options;
    this.#dataplane = new Peer('podwire-node', options.dataplane);
  }

  /**
   * @returns the response message, or an {@link HttpResponse}, in protobuf's binary form; of a method with many response messages, each
   * one behind its length in 4 bytes
   * @throws Failure
   */
  async *execute({ path, httpMethod, httpHeaders, body }: NodeRequest, timeoutMs: number): AsyncGenerator<Uint8Array> {
    if (httpMethod !== '') {
      const isStatus = path === '/cni' && httpHeaders['cni-command'] === 'STATUS';
      const isKnown = isStatus || ROUTES.includes(`${httpMethod} ${path}`);
      if (!isKnown) throw refusal(`${httpMethod} ${path}`);
      const request = { path, httpMethod, httpHeaders, body };
      yield HttpResponse.encode(await requestPlugin(this.#options.cniSocket, request, timeoutMs)).finish();
      return;
    }
    if (!METHODS.includes(path) && !STREAMS.includes(path)) throw refusal(path);
    const bytes = (message: Buffer): Buffer => message;
    const coding = { requestSerialize: bytes, requestDeserialize: bytes, responseSerialize: bytes };
    const responseStream = STREAMS.includes(path);
    const method = { path, requestStream: false, responseStream, ...coding, responseDeserialize: bytes } as const;
    if (!responseStream) {
      yield await this.#dataplane.call(method, body, { deadlineMs: this.#options.clock.nowMs() + timeoutMs });
      return;
    }
    for await (const message of this.#dataplane.stream(method, body, AbortSignal.timeout(timeoutMs))) {
      const length = Buffer.alloc(4);
      length.writeUInt32BE(message.length);
      yield Buffer.concat([length, message]);
    }
  }

  /** Body of the server of CNI commands. @throws Failure */
  async get(path: string, timeoutMs: number): Promise<string> {
    const request = { path, httpMethod: 'GET', httpHeaders: {}, body: Buffer.alloc(0) };
    return (await requestPlugin(this.#options.cniSocket, request, timeoutMs)).body.toString();
  }

  /** Idempotent. */
  close(): void {
    this.#dataplane.close();
  }
}

/** Sends a request to the server of CNI commands. @throws Failure UNREACHABLE */
export function requestPlugin(
  socketPath: string,
  { path, httpMethod: method, httpHeaders, body }: NodeRequest,
  timeoutMs: number,
): Promise<HttpResponse> {
  return new Promise((resolve, reject) => {
    const failed = (cause: unknown): void =>
      reject(new Failure('UNREACHABLE', `podwire-node at ${socketPath}: ${messageOf(cause)}`, { cause }));
    const headers = { host: 'podwire-node', ...httpHeaders };
    const signal = AbortSignal.timeout(timeoutMs);
    const call = httpRequest({ socketPath, path, method, headers, signal }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk)).once('error', failed);
      response.once('end', () => resolve({ status: response.statusCode ?? 0, body: Buffer.concat(chunks) }));
    });
    call.once('error', failed).end(body);
  });
}

function refusal(call: string): Failure {
  return new Failure('ACCESS_DENIED', `${call}: a node does not execute it for operators; call it on the node itself`);
}
