import { mkdirSync, writeFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { createServer, type Server } from 'node:https';
import { join } from 'node:path';
import { text as streamText } from 'node:stream/consumers';

import { selfSignedServer } from '@podwire/shared/testing/certificates';
import {
  createLocalJWKSet,
  exportJWK,
  exportSPKI,
  generateKeyPair,
  jwtVerify,
  SignJWT,
  type CryptoKey,
  type JWK,
  type JWTHeaderParameters,
} from 'jose';
import { z } from 'zod';

import { KubernetesApi } from '../api-server/api.js';

/** Namespace of the service account that {@link TokenApi.connect} uses. */
export const NAMESPACE = 'podwire-system';

const TOKEN = 'token-of-podwire-ipam';
const NODE_ACCOUNT = `system:serviceaccount:${NAMESPACE}:podwire-node`;
/** Issuer of the tokens. */
export const ISSUER = 'https://kubernetes.default.svc';

const reviewSchema = z.object({ spec: z.object({ token: z.string(), audiences: z.array(z.string()) }) });
const reviewedSchema = z.object({
  sub: z.string(),
  aud: z.array(z.string()),
  'kubernetes.io': z.object({ node: z.object({ name: z.string() }), pod: z.object({ uid: z.string() }) }),
});
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

/** Claims of a token, in place of the claims of a good one. */
export interface TokenSpec {
  readonly node?: string;
  /** UID of the pod. Default: the UID of the node's pod. */
  readonly pod?: string;
  readonly subject?: string;
  readonly audience?: string;
  readonly issuer?: string;
  /** Seconds from now until it expires. Default: 3600. */
  readonly lifeS?: number;
  /** Replaces the claims of Kubernetes. */
  readonly bound?: unknown;
  /** Makes it a further token of the same pod. */
  readonly id?: string;
}

interface SigningKey {
  readonly kid: string;
  readonly privateKey: CryptoKey;
  readonly publicKey: CryptoKey;
}

/**
 * A double of the API server, over HTTPS: it signs tokens with real keys, reviews them while their pods exist, and has
 * Nodes, and the ConfigMap of the authority with its resource version.
 * {@link TokenApi.answer} replaces its answers.
 */
export class TokenApi {
  readonly requests: ReceivedRequest[] = [];
  /** UIDs of the deleted pods. */
  readonly deletedPods = new Set<string>();
  /** UIDs of the Nodes by their names. A token makes the Node that it names. */
  readonly nodes = new Map<string, string>();
  /** The podCIDRs of each Node. */
  podCidrs: string[] = [];
  /** Nodes of the pods by `namespace/name`. */
  readonly pods = new Map<string, string>();
  /** Content of the ConfigMap podwire-authority. */
  published = '';
  /** Called before the built-in answers; undefined for those. */
  answer: (request: ReceivedRequest) => GivenAnswer | undefined | Promise<GivenAnswer> = () => undefined;
  readonly #server: Server;
  readonly #directory: string;
  #version = 1;
  #keys: SigningKey[] = [];

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
  static async start(directory: string): Promise<TokenApi> {
    const { certificate, key } = await selfSignedServer();
    mkdirSync(directory, { recursive: true });
    const files = { 'ca.crt': certificate, token: `${TOKEN}\n`, namespace: NAMESPACE };
    for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content);
    const server = createServer({ cert: certificate, key });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const api = new TokenApi(server, directory);
    await api.addKey();
    return api;
  }

  connect(): KubernetesApi {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the API server does not listen');
    const { port } = address;
    return new KubernetesApi({ host: '127.0.0.1', port: String(port), directory: this.#directory });
  }

  /** Signs from now on with a new key. */
  async addKey(): Promise<void> {
    const { privateKey, publicKey } = await generateKeyPair('RS256', { extractable: true });
    this.#keys = [{ kid: `key-${this.#keys.length + 1}`, privateKey, publicKey }, ...this.#keys];
  }

  /** The public part of the key that signs, in PEM. */
  publicKey(): Promise<string> {
    return exportSPKI(this.#signing().publicKey);
  }

  /** A token of the pod of podwire-node on a node, unless the spec says otherwise. */
  token(spec: TokenSpec = {}): Promise<string> {
    return this.#unsigned(spec)
      .setProtectedHeader({ alg: 'RS256', kid: this.#signing().kid })
      .sign(this.#signing().privateKey);
  }

  /** The same, signed with a key of the caller. */
  forgedToken(header: JWTHeaderParameters, key: CryptoKey | Uint8Array): Promise<string> {
    return this.#unsigned({})
      .setProtectedHeader({ kid: this.#signing().kid, ...header })
      .sign(key);
  }

  /** Number of the token reviews so far. */
  get reviewsCount(): number {
    return this.requests.filter(({ path }) => path.endsWith('/tokenreviews')).length;
  }

  #signing(): SigningKey {
    const [key] = this.#keys;
    if (!key) throw new Error('the API server has no key');
    return key;
  }

  #unsigned({ node = 'worker-1', pod = `pod-of-${node}`, lifeS = 3600, ...spec }: TokenSpec): SignJWT {
    const uid = this.nodes.get(node) ?? `uid-of-${node}`;
    this.nodes.set(node, uid);
    const nowS = Math.floor(Date.now() / 1000);
    const bound = spec.bound ?? { namespace: NAMESPACE, node: { name: node, uid }, pod: { name: pod, uid: pod } };
    return new SignJWT({ 'kubernetes.io': bound, jti: spec.id ?? 'first' })
      .setSubject(spec.subject ?? NODE_ACCOUNT)
      .setAudience([spec.audience ?? 'podwire-ipam'])
      .setIssuer(spec.issuer ?? ISSUER)
      .setIssuedAt(nowS)
      .setExpirationTime(nowS + lifeS);
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
    const given = await this.answer(request);
    if (given) return given;
    if (headers.authorization !== `Bearer ${TOKEN}`) return { status: 401, body: { message: 'Unauthorized' } };
    if (path === '/openid/v1/jwks')
      return headers.accept?.includes('application/jwk-set+json') === true
        ? { status: 200, body: await this.#published() }
        : { status: 406, body: { message: 'Not Acceptable' } };
    if (path === '/.well-known/openid-configuration') return { status: 200, body: { issuer: ISSUER } };
    if (path.startsWith('/api/v1/nodes/')) return this.#node(path.slice('/api/v1/nodes/'.length));
    const [, namespace = '', pod] = /^\/api\/v1\/namespaces\/([^/]+)\/pods\/([^/?]+)$/.exec(path) ?? [];
    if (pod !== undefined) return this.#pod(namespace, pod);
    if (path.endsWith('/tokenreviews')) return this.#review(reviewSchema.parse(body).spec);
    if (path.endsWith('/configmaps/podwire-authority'))
      return method === 'GET' ? this.#configMap() : this.#patch(patchSchema.parse(body));
    return { status: 404, body: { message: 'not found' } };
  }

  async #review({ token, audiences }: z.infer<typeof reviewSchema>['spec']): Promise<GivenAnswer> {
    const answer = (status: object): GivenAnswer => ({ status: 201, body: { status } });
    try {
      const { payload } = await jwtVerify(token, createLocalJWKSet(await this.#published()), { audience: audiences });
      const { sub, aud, 'kubernetes.io': bound } = reviewedSchema.parse(payload);
      if (this.deletedPods.has(bound.pod.uid)) throw new Error('service account token has been invalidated');
      const extra = {
        'authentication.kubernetes.io/node-name': [bound.node.name],
        'authentication.kubernetes.io/pod-uid': [bound.pod.uid],
      };
      return answer({ authenticated: true, audiences: aud, user: { username: sub, extra } });
    } catch (error) {
      return answer({ authenticated: false, error: String(error) });
    }
  }

  async #published(): Promise<{ keys: JWK[] }> {
    const keys = this.#keys.map(async ({ kid, publicKey }) => ({ ...(await exportJWK(publicKey)), kid, alg: 'RS256' }));
    return { keys: await Promise.all(keys) };
  }

  #node(name: string): GivenAnswer {
    const uid = this.nodes.get(name);
    return uid === undefined
      ? { status: 404, body: {} }
      : { status: 200, body: { metadata: { uid }, spec: { podCIDRs: this.podCidrs } } };
  }

  #pod(namespace: string, name: string): GivenAnswer {
    const nodeName = this.pods.get(`${namespace}/${name}`);
    const body = { metadata: { namespace, name }, spec: nodeName === '' ? {} : { nodeName } };
    return nodeName === undefined ? { status: 404, body: { message: 'not found' } } : { status: 200, body };
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
