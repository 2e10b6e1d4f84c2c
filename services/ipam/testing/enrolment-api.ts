import { mkdirSync, writeFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { createServer, type Server } from 'node:https';
import { join } from 'node:path';
import { text as streamText } from 'node:stream/consumers';

import { selfSignedServer } from '@podwire/shared/testing/certificates';
import { z } from 'zod';

import { KubernetesApi } from '../kubernetes/api.js';

/** Namespace of the service account that {@link EnrolmentApi.connect} uses. */
export const NAMESPACE = 'podwire-system';

const TOKEN = 'token-of-podwire-ipam';

const reviewSchema = z.object({ spec: z.object({ token: z.string(), audiences: z.array(z.string()) }) });
const patchSchema = z.object({
  metadata: z.object({ resourceVersion: z.string() }),
  data: z.record(z.string(), z.string()),
});

/** A request as the server has received it. */
export interface ReceivedRequest {
  readonly method: string;
  readonly path: string;
  readonly contentType: string | undefined;
  readonly body: unknown;
}

export interface GivenAnswer {
  readonly status: number;
  readonly body?: unknown;
}

/** The user that a token stands for. */
interface TokenUser {
  readonly username: string;
  readonly audience: string;
  readonly node?: string;
}

/**
 * A double of the API server, over HTTPS: token reviews, and the ConfigMap of the authority with its resource version.
 * {@link EnrolmentApi.answer} replaces its answers.
 */
export class EnrolmentApi {
  readonly requests: ReceivedRequest[] = [];
  /** Users by token. */
  readonly tokens = new Map<string, TokenUser>();
  /** Content of the ConfigMap podwire-authority. */
  published = '';
  /** Called before the built-in answers; undefined for those. */
  answer: (request: ReceivedRequest) => GivenAnswer | undefined = () => undefined;
  readonly #server: Server;
  readonly #directory: string;
  #version = 1;

  private constructor(server: Server, directory: string) {
    this.#server = server;
    this.#directory = directory;
    server.on('request', (request, response) => {
      void this.#serve(request).then(({ status, body }) => {
        response.writeHead(status, { 'content-type': 'application/json' });
        response.end(JSON.stringify(body ?? {}));
      });
    });
  }

  /** @param directory - for the files of the service account; created */
  static async start(directory: string): Promise<EnrolmentApi> {
    const { certificate, key } = await selfSignedServer();
    mkdirSync(directory, { recursive: true });
    const files = { 'ca.crt': certificate, token: `${TOKEN}\n`, namespace: NAMESPACE };
    for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content);
    const server = createServer({ cert: certificate, key });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return new EnrolmentApi(server, directory);
  }

  connect(): KubernetesApi {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the API server does not listen');
    const { port } = address;
    return new KubernetesApi({ host: '127.0.0.1', port: String(port), directory: this.#directory });
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(incoming: IncomingMessage): Promise<GivenAnswer> {
    const text = await streamText(incoming);
    const { method = '', url: path = '', headers } = incoming;
    const body: unknown = text === '' ? undefined : JSON.parse(text);
    const request = { method, path, contentType: headers['content-type'], body };
    this.requests.push(request);
    const given = this.answer(request);
    if (given) return given;
    if (headers.authorization !== `Bearer ${TOKEN}`) return { status: 401, body: { message: 'Unauthorized' } };
    if (path.endsWith('/tokenreviews')) return this.#review(reviewSchema.parse(body).spec);
    if (path.endsWith('/configmaps/podwire-authority'))
      return method === 'GET' ? this.#configMap() : this.#patch(patchSchema.parse(body));
    return { status: 404, body: { message: 'not found' } };
  }

  #review({ token, audiences }: z.infer<typeof reviewSchema>['spec']): GivenAnswer {
    const user = this.tokens.get(token);
    if (!user || !audiences.includes(user.audience))
      return { status: 201, body: { status: { authenticated: false, error: 'token is not known' } } };
    const { username, audience, node } = user;
    const extra = node === undefined ? {} : { 'authentication.kubernetes.io/node-name': [node] };
    return { status: 201, body: { status: { authenticated: true, audiences: [audience], user: { username, extra } } } };
  }

  #configMap(): GivenAnswer {
    const data = this.published === '' ? {} : { data: { 'ca.crt': this.published } };
    return { status: 200, body: { metadata: { resourceVersion: String(this.#version) }, ...data } };
  }

  #patch({ metadata, data }: z.infer<typeof patchSchema>): GivenAnswer {
    if (metadata.resourceVersion !== String(this.#version)) return { status: 409, body: { message: 'conflict' } };
    this.#version += 1;
    this.published = data['ca.crt'] ?? '';
    return this.#configMap();
  }
}
