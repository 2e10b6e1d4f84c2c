// Runs podwirectl in this process against fake services, which listen on sockets in a temporary folder.
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable, Writable } from 'node:stream';

import type { MethodDefinition, UntypedHandleCall } from '@grpc/grpc-js';
import {
  ClusterServiceService,
  NodeRequest,
  type CallNodeRequest,
  type CallNodeResponse,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { DryRunServiceService } from '@podwire/proto/podwire/ipam/v1/dry_run';
import { EncapsulationMode, GetPoolResponse, PoolServiceService, PoolState } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { RpcServer, type RpcService } from '@podwire/shared/rpc/server';
import type { Streaming } from '@podwire/shared/rpc/streaming';
import type { Unary } from '@podwire/shared/rpc/unary';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';

import { run, type RunDeps } from '../run.js';

/** The answer of a fake service to one of its methods. */
interface FakeMethod {
  readonly path: string;
  readonly definition: RpcService['definition'];
  readonly handler: (
    parts: { readonly unary: Unary; readonly streaming: Streaming },
    calls: Call[],
  ) => UntypedHandleCall;
  /** Answers a dry run of the method, recorded as `DryRun CreatePool`. */
  readonly dryRun?: (request: Buffer, calls: Call[]) => Buffer;
}

type PluginAnswer = string | readonly [status: number, body: string] | undefined;

interface Call {
  /** Name of the method: `ListPools`. */
  readonly method: string;
  readonly request: object;
}

export function fake<Request extends object, Response>(
  method: MethodDefinition<Request, Response>,
  answer: (request: Request) => Response,
): FakeMethod {
  const name = method.path.split('/')[2] ?? '';
  return {
    path: method.path,
    definition: { [name]: method },
    handler: ({ unary }, calls) =>
      unary(method, async (request) => {
        calls.push({ method: name, request });
        await Promise.resolve();
        return answer(request);
      }),
    dryRun: (bytes, calls) => {
      const request = method.requestDeserialize(bytes);
      calls.push({ method: `DryRun ${name}`, request });
      return method.responseSerialize(answer(request));
    },
  };
}

/** Dry runs of the fake methods. */
function fakeDryRun(methods: readonly FakeMethod[]): FakeMethod {
  const { dryRun } = DryRunServiceService;
  const handler: FakeMethod['handler'] = ({ unary }, calls) =>
    unary(dryRun, async ({ path, request }) => {
      await Promise.resolve();
      const method = methods.find((each) => each.path === path);
      if (!method?.dryRun) throw new Failure('INVALID_REQUEST', `DryRun: path "${path}" is not served`);
      return { response: method.dryRun(request, calls) };
    });
  return { path: dryRun.path, definition: { DryRun: dryRun }, handler };
}

/** A method that answers with several messages. */
export function fakeStream<Request extends object, Response>(
  method: MethodDefinition<Request, Response>,
  answer: (request: Request) => readonly Response[],
): FakeMethod {
  const name = method.path.split('/')[2] ?? '';
  const call = async function* (request: Request): AsyncGenerator<Response> {
    await Promise.resolve();
    yield* answer(request);
  };
  return { path: method.path, definition: { [name]: method }, handler: ({ streaming }) => streaming(method, call) };
}

/**
 * A node that answers through podwire-ipam.
 * @param answer - the response message of a gRPC method, or an HttpResponse; throws the node's failure
 * @param ofOthers - the failure of calls of other nodes
 */
export function fakeNode(
  nodeName: string,
  answer: (request: NodeRequest) => Uint8Array,
  ofOthers?: Failure,
): FakeMethod {
  const { callNode } = ClusterServiceService;
  const call = async function* ({ nodeName: called, request }: CallNodeRequest): AsyncGenerator<CallNodeResponse> {
    await Promise.resolve();
    if (called !== nodeName) throw ofOthers ?? new Failure('NODE_NOT_FOUND', `there is no node "${called}"`);
    const bytes = answer(NodeRequest.fromPartial(request ?? {}));
    const middle = Math.ceil(bytes.length / 2);
    for (const part of [bytes.subarray(0, middle), bytes.subarray(middle)]) yield { part: Buffer.from(part) };
  };
  const handler: FakeMethod['handler'] = ({ streaming }) => streaming(callNode, call);
  return { path: callNode.path, definition: { CallNode: callNode }, handler };
}

/** Fake services. The gRPC services share one socket; the plugin has another. */
export class Fakes {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-ctl-'));
  readonly calls: Call[] = [];
  /** Log lines of the services, and of a command that serves. */
  readonly logged: Record<string, unknown>[] = [];
  /** Content of the standard input. */
  input = '';
  /** Whether the command runs on a terminal. */
  isTerminal = false;
  /** Replaces the editor. */
  edit: (file: string) => void = () => undefined;
  /** Replaces the waits of commands. */
  sleep: typeof systemClock.sleep = (durationMs, signal) => systemClock.sleep(durationMs, signal);
  /** Replaces the timeouts of commands. */
  after: typeof systemClock.after = (durationMs, act) => systemClock.after(durationMs, act);
  /** Ends commands that wait or serve. */
  readonly stopped = new AbortController();
  #running = { stdout: '', stderr: '' };
  #stdout: readonly Buffer[] = [];
  #server: RpcServer | undefined;
  #plugin: Server | undefined;

  get socket(): string {
    return join(this.folder, 'services.sock');
  }

  get pluginSocket(): string {
    return join(this.folder, 'cni.sock');
  }

  async serve(...methods: readonly FakeMethod[]): Promise<void> {
    this.#server = new RpcServer({
      addresses: [`unix:${this.socket}`],
      log: this.#log('error'),
      clock: systemClock,
      defaultCallTimeoutMs: 10_000,
      drainTimeoutMs: 1000,
      services: (unary, streaming) =>
        servicesOf([...methods, fakeDryRun(methods)], (method) => method.handler({ unary, streaming }, this.calls)),
    });
    await this.#server.listen();
  }

  /**
   * @param answer - maps method, path and CNI headers of a request (`GET /journal`), and its body, to the response body. Undefined is
   *   404; a pair sets another status than 200
   */
  async servePlugin(answer: (request: string, body: string) => PluginAnswer): Promise<void> {
    const server = createServer((request, response) => {
      let sent = '';
      request.setEncoding('utf8').on('data', (chunk: string) => (sent += chunk));
      request.once('end', () => {
        const { method, url, headers } = request;
        const reading = headers['podwire-strict'] === undefined ? undefined : 'strict';
        const words = [method, url, headers['cni-command'], headers['cni-path'], reading];
        const reply = answer(words.filter((word) => word !== undefined).join(' '), sent) ?? [404, ''];
        const [status, body] = typeof reply === 'string' ? [200, reply] : reply;
        response.writeHead(status).end(body);
      });
    });
    this.#plugin = server;
    await new Promise<void>((resolve) => server.listen(this.pluginSocket, resolve));
  }

  /** Runs podwirectl as a shell does. */
  podwirectl(...args: readonly string[]) {
    return this.podwirectlWith({}, ...args);
  }

  /** Standard output of the last command, for one that writes no text. */
  get stdoutBytes(): Buffer {
    return Buffer.concat(this.#stdout);
  }

  /** Output of the running command so far. */
  get written(): { readonly stdout: string; readonly stderr: string } {
    return this.#running;
  }

  /** Runs podwirectl with further environment variables. */
  async podwirectlWith(variables: Readonly<Record<string, string>>, ...args: readonly string[]) {
    const texts = { stdout: '', stderr: '' };
    const chunks: Buffer[] = [];
    this.#stdout = chunks;
    this.#running = texts;
    const stream = (name: keyof typeof texts) =>
      new Writable({
        write: (chunk: Buffer, _, done) => {
          texts[name] += chunk.toString();
          if (name === 'stdout') chunks.push(chunk);
          done();
        },
      });
    const env = {
      PODWIRE_NODE_IPAM_ADDRESS: `unix:${this.socket}`,
      PODWIRE_NODE_LISTEN: `unix:${this.socket}`,
      PODWIRE_NODE_CNI_SOCKET: this.pluginSocket,
      ...variables,
    };
    const isTTY = this.isTerminal;
    const stdin = Object.assign(Readable.from([this.input]), { isTTY });
    const stdout = Object.assign(stream('stdout'), { isTTY });
    const process = { env: { NO_COLOR: '1', ...env }, stdin, stdout, stderr: stream('stderr') };
    const serve: RunDeps['serve'] = async (start) => {
      const running = start(this.#log('info'));
      await once(this.stopped.signal, 'abort');
      await running.stop();
    };
    const stopSignal = () => this.stopped.signal;
    const exitCode = await run(args, {
      process,
      clock: { ...systemClock, sleep: this.sleep, after: this.after },
      random: () => 0.1,
      stopSignal,
      serve,
      edit: (file) => {
        this.edit(file);
        return Promise.resolve();
      },
      traceCommand: () => Promise.resolve(),
    });
    return { exitCode, ...texts };
  }

  #log(level: 'info' | 'error'): Logger {
    const destination = { write: (line: string) => void this.logged.push(JSON.parse(line)) };
    return createLogger({ service: 'fake', level, destination });
  }

  async clear(): Promise<void> {
    this.stopped.abort();
    await this.#server?.stop();
    this.#plugin?.close();
    rmSync(this.folder, { recursive: true });
  }
}

function servicesOf(
  methods: readonly FakeMethod[],
  handlerOf: (method: FakeMethod) => UntypedHandleCall,
): readonly RpcService[] {
  const names = [...new Set(methods.map(({ path }) => path.split('/')[1] ?? ''))];
  return names.map((name) => {
    const own = methods.filter(({ path }) => path.split('/')[1] === name);
    const entries = own.map((method): [string, UntypedHandleCall] => [
      method.path.split('/')[2] ?? '',
      handlerOf(method),
    ]);
    return {
      name,
      definition: Object.assign({}, ...own.map(({ definition }) => definition)),
      implementation: Object.fromEntries(entries),
    };
  });
}

/** Objects that several tests use. */

export const pool = {
  name: 'main',
  cidr: '10.65.0.0/16',
  blockSize: 26,
  vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
  natOutgoing: true,
  state: PoolState.POOL_STATE_ACTIVE,
  utilization: {
    capacity: '65536',
    allocated: 65000n,
    free: '536',
    blocks: 1016n,
    cooling: 10n,
    reserved: '500',
    available: '36',
    leased: 8n,
  },
};
export const foundPool = fake(PoolServiceService.getPool, () => GetPoolResponse.fromPartial({ pool }));
export const attributes = { namespace: 'default', pod: 'web-0', node: 'node-1', network: 'net', interface: 'eth0' };

/** The pod that has an address. */
export const holder = { handleId: 'net.c0ffee', attributes, sequenceNumber: 12n };
