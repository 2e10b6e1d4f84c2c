import { join } from 'node:path';

import { Client, credentials } from '@grpc/grpc-js';
import { loadSync, type MethodDefinition } from '@grpc/proto-loader';
import { z } from 'zod';

import { ROOT } from '../support/root.js';

const SERVICE = 'runtime.v1.RuntimeService';

/** A pod as the kubelet describes it to the container runtime. */
export interface SandboxConfig {
  readonly metadata: {
    readonly name: string;
    readonly uid: string;
    readonly namespace: string;
    readonly attempt: number;
  };
  readonly hostname: string;
  readonly log_directory: string;
  readonly port_mappings: readonly {
    readonly protocol: 'TCP' | 'UDP';
    readonly container_port: number;
    readonly host_port: number;
  }[];
  readonly annotations: Readonly<Record<string, string>>;
  readonly linux: object;
}

const started = z.object({ pod_sandbox_id: z.string() });
const created = z.object({ container_id: z.string() });

const sandboxStatus = z.object({
  status: z.object({
    id: z.string(),
    state: z.enum(['SANDBOX_READY', 'SANDBOX_NOTREADY']),
    network: z.object({ ip: z.string() }).nullable(),
  }),
  info: z.object({ info: z.string() }),
});
export type SandboxStatus = z.infer<typeof sandboxStatus>;

const sandboxes = z.object({
  items: z.array(
    z.object({
      id: z.string(),
      metadata: z.object({ name: z.string(), attempt: z.number() }),
      state: z.enum(['SANDBOX_READY', 'SANDBOX_NOTREADY']),
    }),
  ),
});
export type Sandbox = z.infer<typeof sandboxes>['items'][number];

const runtimeStatus = z.object({
  status: z.object({
    conditions: z.array(z.object({ type: z.string(), status: z.boolean(), message: z.string() })),
  }),
});

/** A killed runtime restarts sooner than gRPC would reconnect. */
const RECONNECT = { 'grpc.initial_reconnect_backoff_ms': 50, 'grpc.max_reconnect_backoff_ms': 200 };

/** Kubelet's calls of a container runtime, over the runtime's unix socket. Errors are gRPC's, with the runtime's text. */
export class Cri {
  readonly #client: Client;
  readonly #methods: Readonly<Record<string, MethodDefinition<object, object>>>;

  constructor(socket: string) {
    this.#client = new Client(`unix:${socket}`, credentials.createInsecure(), RECONNECT);
    const file = join(ROOT, 'test', 'runtime', 'cri.proto');
    const definition = loadSync(file, { keepCase: true, longs: String, enums: String, defaults: true })[SERVICE];
    if (definition === undefined || 'format' in definition) throw new Error(`${file} has no service ${SERVICE}`);
    this.#methods = definition;
  }

  /** The reason why the runtime cannot start pods; empty otherwise. */
  async faults(): Promise<readonly string[]> {
    const { status } = runtimeStatus.parse(await this.#call('Status', {}));
    return status.conditions.filter((each) => !each.status).map(({ type, message }) => `${type}: ${message}`);
  }

  /** @returns the sandbox's ID, which is CNI's container ID */
  async run(config: SandboxConfig, timeoutMs?: number): Promise<string> {
    return started.parse(await this.#call('RunPodSandbox', { config }, timeoutMs)).pod_sandbox_id;
  }

  /** Idempotent. */
  async stop(id: string): Promise<void> {
    await this.#call('StopPodSandbox', { pod_sandbox_id: id });
  }

  /** Idempotent. Stops a running one first. */
  async remove(id: string): Promise<void> {
    await this.#call('RemovePodSandbox', { pod_sandbox_id: id });
  }

  async status(id: string): Promise<SandboxStatus> {
    return sandboxStatus.parse(await this.#call('PodSandboxStatus', { pod_sandbox_id: id, verbose: true }));
  }

  async list(): Promise<readonly Sandbox[]> {
    return sandboxes.parse(await this.#call('ListPodSandbox', {})).items;
  }

  /** Creates and starts a container. @param container - `metadata`, `image`, `args` and the like */
  async startContainer(id: string, sandboxConfig: SandboxConfig, container: object): Promise<void> {
    const request = { pod_sandbox_id: id, config: container, sandbox_config: sandboxConfig };
    const { container_id } = created.parse(await this.#call('CreateContainer', request));
    await this.#call('StartContainer', { container_id });
  }

  close(): void {
    this.#client.close();
  }

  #call(name: string, request: object, timeoutMs = 120_000): Promise<object> {
    const method = this.#methods[name];
    if (!method) throw new Error(`cri.proto has no method ${name}`);
    const { path, requestSerialize, responseDeserialize } = method;
    const deadline = Date.now() + timeoutMs;
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        { deadline },
        (error, answer) => {
          if (error) reject(new Error(`${name}: ${error.details}`, { cause: error }));
          else resolve(answer ?? {});
        },
      );
    });
  }
}
