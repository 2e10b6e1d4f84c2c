import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { CertificateAuthority } from '../engine/testing/etcd-server.js';
import type { KubernetesApiOptions } from '../api-server/api.js';

export const NAMESPACE = 'podwire-system';
export const NODES = '/api/v1/nodes';
export const OWN_PODS = `/api/v1/namespaces/${NAMESPACE}/pods`;
const KUBE_SYSTEM = '/api/v1/namespaces/kube-system';

interface Metadata {
  name: string;
  namespace?: string;
  resourceVersion?: string;
  labels?: Record<string, string>;
}

export interface FakeObject {
  metadata: Metadata;
  spec?: { nodeName?: string; taints?: { key: string; effect: string }[] | undefined };
  status?: { conditions?: { type: string; status: string; reason?: string }[] };
}

interface PatchBody extends Pick<FakeObject, 'spec' | 'status'> {
  metadata?: { resourceVersion?: string };
}

interface StoredEvent {
  readonly version: number;
  readonly type: string;
  readonly collection: string;
  readonly object: FakeObject;
}

interface Watcher {
  readonly collection: string;
  readonly selector: string;
  readonly response: ServerResponse;
}

/** An API server of Nodes, Pods and one Namespace, over HTTPS: lists in pages, watches, merge patches and faults. */
export class FakeApiServer {
  /** Request line: `GET /api/v1/nodes?limit=500`. */
  readonly requests: string[] = [];
  clusterUid = 'aaaaaaaa-0000-4000-8000-000000000001';
  /** Answers every request with this status, if any. */
  refusal: number | undefined;
  /** Holds back requests, also of patches, until it resolves. */
  gate: Promise<void> | undefined;
  /** Called before each answer. */
  onRequest: (line: string) => void = () => undefined;
  /** Items of a page at most. */
  pageSize = 500;
  readonly #directory: string;
  readonly #server: Server;
  readonly #collections = new Map<string, Map<string, FakeObject>>();
  readonly #snapshots = new Map<string, { readonly version: number; readonly items: readonly FakeObject[] }>();
  readonly #watchers = new Set<Watcher>();
  #events: StoredEvent[] = [];
  #version = 100;
  #compactedVersion = 0;

  private constructor(directory: string, server: Server) {
    this.#directory = directory;
    this.#server = server;
    server.on('request', (request, response) => void this.#answer(request, response));
  }

  static async start(): Promise<FakeApiServer> {
    const directory = mkdtempSync(join(tmpdir(), 'podwire-api-server-'));
    const { ca, cert, key } = new CertificateAuthority(join(directory, 'tls')).issue('kube-apiserver');
    const account = join(directory, 'account');
    mkdirSync(account);
    writeFileSync(join(account, 'ca.crt'), readFileSync(ca));
    writeFileSync(join(account, 'token'), 'token-1\n');
    writeFileSync(join(account, 'namespace'), NAMESPACE);
    const server = createServer({ cert: readFileSync(cert), key: readFileSync(key) });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new FakeApiServer(directory, server);
  }

  get options(): KubernetesApiOptions {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the server does not listen');
    return { host: '127.0.0.1', port: String(address.port), directory: join(this.#directory, 'account') };
  }

  get watchersCount(): number {
    return this.#watchers.size;
  }

  async stop(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.disconnect();
    await closed;
    rmSync(this.#directory, { recursive: true, force: true });
  }

  /** Cuts all connections. */
  disconnect(): void {
    this.#server.closeAllConnections();
  }

  /** Ends all watches in order, as after their time. */
  endWatches(): void {
    for (const { response } of this.#watchers) response.end();
    this.#watchers.clear();
  }

  object(collection: string, name: string): FakeObject | undefined {
    return this.#collections.get(collection)?.get(name);
  }

  put(collection: string, object: FakeObject): void {
    const objects = this.#objects(collection);
    const type = objects.has(object.metadata.name) ? 'MODIFIED' : 'ADDED';
    const stored = { ...object, metadata: { ...object.metadata, resourceVersion: String(++this.#version) } };
    objects.set(object.metadata.name, stored);
    this.#notify({ version: this.#version, type, collection, object: stored });
  }

  delete(collection: string, name: string): void {
    const object = this.#objects(collection).get(name);
    if (!object) return;
    this.#objects(collection).delete(name);
    const version = ++this.#version;
    const last = { ...object, metadata: { ...object.metadata, resourceVersion: String(version) } };
    this.#notify({ version, type: 'DELETED', collection, object: last });
  }

  /** Forgets objects and all events, as an etcd that is restored from an old backup. */
  lose(collection: string, names: readonly string[]): void {
    for (const name of names) this.#objects(collection).delete(name);
    this.compact();
    this.disconnect();
  }

  /** Versions until now expire. */
  compact(): void {
    this.#compactedVersion = ++this.#version;
    this.#events = [];
    this.#snapshots.clear();
  }

  bookmark(): void {
    const version = String(++this.#version);
    for (const watcher of this.#watchers)
      send(watcher, 'BOOKMARK', { metadata: { name: '', resourceVersion: version } });
  }

  #objects(collection: string): Map<string, FakeObject> {
    const objects = this.#collections.get(collection) ?? new Map<string, FakeObject>();
    this.#collections.set(collection, objects);
    return objects;
  }

  #notify(event: StoredEvent): void {
    this.#events.push(event);
    for (const watcher of this.#watchers) sendEvent(watcher, event);
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url = '' } = request;
    this.requests.push(`${method} ${url}`);
    this.onRequest(`${method} ${url}`);
    const { pathname, searchParams } = new URL(url, 'https://localhost');
    await this.gate;
    if (request.headers.authorization !== 'Bearer token-1') {
      answer(response, 401, status(401));
      return;
    }
    if (this.refusal !== undefined) {
      answer(response, this.refusal, status(this.refusal));
      return;
    }
    if (pathname === KUBE_SYSTEM) {
      answer(response, 200, { metadata: { uid: this.clusterUid } });
      return;
    }
    if (method === 'PATCH') {
      this.#patch(pathname, await bodyOf(request), response);
      return;
    }
    if (searchParams.has('watch')) {
      this.#watch(pathname, searchParams, response);
      return;
    }
    const isMetadata = request.headers.accept?.includes('PartialObjectMetadataList') ?? false;
    this.#list(pathname, searchParams, isMetadata, response);
  }

  #list(collection: string, query: URLSearchParams, isMetadata: boolean, response: ServerResponse): void {
    const token = query.get('continue') ?? '';
    const [id = '', offset = '0'] = token.split(':');
    const items = this.#select(collection, query.get('labelSelector') ?? '');
    const snapshot = token === '' ? { version: this.#version, items } : this.#snapshots.get(id);
    if (!snapshot) {
      answer(response, 410, status(410));
      return;
    }
    const start = Number(offset);
    const end = start + Math.min(this.pageSize, Number(query.get('limit') ?? this.pageSize));
    const key = token === '' ? `s${this.#snapshots.size}` : id;
    this.#snapshots.set(key, snapshot);
    const page = snapshot.items.slice(start, end);
    answer(response, 200, {
      metadata: {
        resourceVersion: String(snapshot.version),
        ...(end < snapshot.items.length ? { continue: `${key}:${end}` } : {}),
      },
      items: isMetadata ? page.map(({ metadata }) => ({ metadata })) : page,
    });
  }

  #select(collection: string, selector: string): FakeObject[] {
    const isAll = collection === '/api/v1/pods';
    const all = isAll
      ? [...this.#collections].flatMap(([path, objects]) => (path.endsWith('/pods') ? [...objects.values()] : []))
      : [...this.#objects(collection).values()];
    return all.filter((object) => matches(object, selector));
  }

  #watch(collection: string, query: URLSearchParams, response: ServerResponse): void {
    const since = Number(query.get('resourceVersion'));
    response.writeHead(200, { 'content-type': 'application/json' });
    response.flushHeaders();
    const watcher = { collection, selector: query.get('labelSelector') ?? '', response };
    if (since < this.#compactedVersion) {
      send(watcher, 'ERROR', status(410));
      response.end();
      return;
    }
    this.#watchers.add(watcher);
    response.on('close', () => this.#watchers.delete(watcher));
    for (const event of this.#events) if (event.version > since) sendEvent(watcher, event);
  }

  #patch(path: string, body: PatchBody, response: ServerResponse): void {
    const isStatus = path.endsWith('/status');
    const name = path.replace(/\/status$/, '').slice(NODES.length + 1);
    const node = this.#objects(NODES).get(name);
    if (!node) {
      answer(response, 404, status(404));
      return;
    }
    const expected = body.metadata?.resourceVersion;
    if (expected !== undefined && expected !== node.metadata.resourceVersion) {
      answer(response, 409, status(409));
      return;
    }
    if (isStatus) {
      const added = body.status?.conditions ?? [];
      const kept = (node.status?.conditions ?? []).filter(({ type }) => !added.some((one) => one.type === type));
      this.put(NODES, { ...node, status: { ...node.status, conditions: [...kept, ...added] } });
    } else this.put(NODES, { ...node, spec: { ...node.spec, taints: body.spec?.taints ?? undefined } });
    answer(response, 200, this.object(NODES, name));
  }
}

function matches({ metadata }: FakeObject, selector: string): boolean {
  const [key = '', value = ''] = selector.split('=');
  return selector === '' || metadata.labels?.[key] === value;
}

function sendEvent(watcher: Watcher, { type, collection, object }: StoredEvent): void {
  if (collection === watcher.collection && matches(object, watcher.selector)) send(watcher, type, object);
}

function send({ response }: Watcher, type: string, object: unknown): void {
  response.write(`${JSON.stringify({ type, object })}\n`);
}

function status(code: number): unknown {
  return { kind: 'Status', code, message: `refused with ${code}` };
}

function answer(response: ServerResponse, code: number, body: unknown): void {
  response.writeHead(code, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}

async function bodyOf(request: IncomingMessage): Promise<PatchBody> {
  const chunks: Buffer[] = [];
  const stream: AsyncIterable<Buffer> = request;
  for await (const chunk of stream) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString());
}

const READY = { type: 'Ready', status: 'True' };

export function nodeObject(name: string, rest: Omit<FakeObject, 'metadata'> = {}): FakeObject {
  return { metadata: { name }, spec: {}, status: { conditions: [READY] }, ...rest };
}

/** A ready pod of the DaemonSet. */
export function nodePod(nodeName: string, isReady = true): FakeObject {
  return {
    metadata: {
      name: `podwire-node-${nodeName}`,
      namespace: NAMESPACE,
      labels: { 'app.kubernetes.io/name': 'podwire-node' },
    },
    spec: { nodeName },
    status: { conditions: [{ type: 'Ready', status: isReady ? 'True' : 'False' }] },
  };
}

export const podsOf = (namespace: string): string => `/api/v1/namespaces/${namespace}/pods`;

export function podObject(namespace: string, name: string): FakeObject {
  return { metadata: { name, namespace } };
}
