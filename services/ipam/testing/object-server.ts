import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { KubernetesApiOptions } from '../api-server/api.js';
import { CertificateAuthority } from '../engine/testing/etcd-server.js';
import {
  formatJson,
  isArray,
  isObject,
  objectIn,
  parseJson,
  type Json,
  type JsonObject,
} from '../records/json/json.js';
import { NAMESPACE } from './api-server.js';

/** Fault of the next request of a kind. */
export type RequestFault =
  /** The connection breaks before it is carried out, or after it. */
  | 'cut before'
  | 'cut after'
  /** Answered with this status, and not carried out. */
  | 403
  | 422
  | 429
  | 500;

/** The only subresource. */
const STATUS = '/status';

/** Paths of the collections that exist. */
const COLLECTION = /^\/(?:apis\/[^/]+\/v\w+|api\/v1)(?:\/namespaces\/[^/]+)?\/[a-z]+$/;

/** An API server of objects of any kind, over HTTPS: optimistic concurrency, finalizers, watches and faults. */
export class ObjectServer {
  /** Request lines of everything but lists and watches. */
  readonly requests: string[] = [];
  /** Called after each of these requests was carried out, before its answer. */
  carriedOut: () => void = () => undefined;
  /** Plurals that each group serves. */
  readonly groups = new Map<string, readonly string[]>();
  /** Collections without a definition. */
  readonly undefinedCollections = new Set<string>();
  /** Most objects of a page so far. */
  largestPage = 0;
  /** Paths of groups that are served no more. */
  readonly #removed: string[] = [];
  readonly #directory: string;
  readonly #server: Server;
  readonly #objects = new Map<string, JsonObject>();
  readonly #watchers = new Set<{ readonly collection: string; readonly response: ServerResponse }>();
  readonly #held: { readonly method: string; readonly arrived: () => void; readonly released: Promise<void> }[] = [];
  readonly #faults: { readonly method: string; readonly fault: RequestFault }[] = [];
  #version = 100;
  #uid = 0;
  /** Whether watches report nothing, as while their events are on the way. */
  isSilent = false;

  private constructor(directory: string, server: Server) {
    this.#directory = directory;
    this.#server = server;
    server.on('request', (request, response) => void this.#answer(request, response));
  }

  static async start(): Promise<ObjectServer> {
    const directory = mkdtempSync(join(tmpdir(), 'podwire-object-server-'));
    const { ca, cert, key } = new CertificateAuthority(join(directory, 'tls')).issue('kube-apiserver');
    const account = join(directory, 'account');
    mkdirSync(account);
    writeFileSync(join(account, 'ca.crt'), readFileSync(ca));
    writeFileSync(join(account, 'token'), 'token-1');
    writeFileSync(join(account, 'namespace'), NAMESPACE);
    const server = createServer({ cert: readFileSync(cert), key: readFileSync(key) });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new ObjectServer(directory, server);
  }

  get options(): KubernetesApiOptions {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the server does not listen');
    return { host: '127.0.0.1', port: String(address.port), directory: join(this.#directory, 'account') };
  }

  async stop(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
    rmSync(this.#directory, { recursive: true, force: true });
  }

  /** The next request of a method that has no fault yet gets this one. */
  injectFault(method: string, fault: RequestFault): void {
    this.#faults.push({ method, fault });
  }

  /** The next request of a method arrives, and is carried out once it is released. */
  hold(method: string): { readonly arrived: Promise<void>; readonly release: () => void } {
    let [arrive, release] = [(): void => undefined, (): void => undefined];
    const arrived = new Promise<void>((resolve) => (arrive = resolve));
    const released = new Promise<void>((resolve) => (release = resolve));
    this.#held.push({ method, arrived: () => arrive(), released });
    return { arrived, release };
  }

  clearFaults(): void {
    this.#faults.length = 0;
  }

  /** The object at a path. */
  get(path: string): JsonObject | undefined {
    return this.#objects.get(path);
  }

  /** The objects of a collection, of one namespace or of all. */
  list(collection: string): JsonObject[] {
    return [...this.#objects].flatMap(([path, object]) => {
      const own = path.slice(0, path.lastIndexOf('/'));
      return [own, own.replace(/\/namespaces\/[^/]+/, '')].includes(collection) ? [object] : [];
    });
  }

  /** Stores an object as another writer does. */
  put(collection: string, object: JsonObject): JsonObject {
    const metadata = objectIn(object, 'metadata');
    const path = `${collection}/${nameOf(object)}`;
    const before = this.#objects.get(path);
    const stored: JsonObject = {
      ...object,
      metadata: {
        ...metadata,
        uid: objectIn(before ?? {}, 'metadata').uid ?? `uid-${++this.#uid}`,
        creationTimestamp: objectIn(before ?? {}, 'metadata').creationTimestamp ?? '2026-11-20T10:00:00Z',
        resourceVersion: String(++this.#version),
      },
    };
    this.#objects.set(path, stored);
    this.#notify(collection, before ? 'MODIFIED' : 'ADDED', stored);
    return stored;
  }

  /** Deletes an object; one with finalizers is only marked. */
  delete(path: string): void {
    const object = this.#objects.get(path);
    if (!object) return;
    const [collection, metadata] = [path.slice(0, path.lastIndexOf('/')), objectIn(object, 'metadata')];
    if (isArray(metadata.finalizers) && metadata.finalizers.length > 0) {
      const deletionTimestamp = metadata.deletionTimestamp ?? '2026-11-20T11:00:00Z';
      this.put(collection, { ...object, metadata: { ...metadata, deletionTimestamp } });
      return;
    }
    this.#objects.delete(path);
    const last = { ...object, metadata: { ...metadata, resourceVersion: String(++this.#version) } };
    this.#notify(collection, 'DELETED', last);
  }

  /** Deletes all definitions of a group, as Kubernetes does: first the objects, which a watch reports, then the resources. */
  removeGroup(group: string): void {
    this.groups.delete(group);
    for (const path of [...this.#objects.keys()]) if (path.startsWith(`${group}/`)) this.delete(path);
    this.#removed.push(group);
    for (const { collection, response } of this.#watchers) if (collection.startsWith(`${group}/`)) response.end();
  }

  /** Calico's migration to v3 reaches a phase. */
  putMigration(phase: string): void {
    const group = 'migration.projectcalico.org';
    this.put('/apis', { metadata: { name: group }, preferredVersion: { version: 'v1' } });
    this.put(`/apis/${group}/v1/datastoremigrations`, { metadata: { name: 'v1-to-v3' }, status: { phase } });
  }

  /** A restore of an empty backup: versions begin again, and watches of later versions report nothing. */
  restore(): void {
    this.#objects.clear();
    this.#version = 50;
    this.isSilent = true;
    for (const { response } of this.#watchers) response.end();
  }

  #notify(collection: string, type: string, object: JsonObject): void {
    if (this.isSilent) return;
    const collections = [collection, collection.replace(/\/namespaces\/[^/]+/, '')];
    for (const watcher of this.#watchers)
      if (collections.includes(watcher.collection)) watcher.response.write(`${formatJson({ type, object })}\n`);
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url = '' } = request;
    const { pathname, searchParams } = new URL(url, 'https://localhost');
    const body = await bodyOf(request);
    const served = this.groups.get(pathname);
    if (served) {
      reply(response, 200, { resources: served.map((name) => ({ name, verbs: VERBS })) });
      return;
    }
    if (this.#removed.some((group) => pathname.startsWith(group))) {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('404 page not found\n');
      return;
    }
    if (this.undefinedCollections.has(pathname)) {
      reply(response, ...NOT_FOUND);
      return;
    }
    if (method === 'GET' && COLLECTION.test(pathname)) {
      if (searchParams.has('watch')) this.#watch(pathname, response);
      else this.#list(pathname, searchParams, response);
      return;
    }
    this.requests.push(`${method} ${pathname}`);
    const heldIndex = this.#held.findIndex((held) => held.method === method);
    const [held] = heldIndex < 0 ? [] : this.#held.splice(heldIndex, 1);
    held?.arrived();
    await held?.released;
    const index = this.#faults.findIndex((planned) => planned.method === method);
    const fault = index < 0 ? undefined : this.#faults.splice(index, 1)[0]?.fault;
    if (typeof fault === 'number') {
      reply(response, fault, { message: `refused with ${fault}` });
      return;
    }
    const manager = searchParams.get('fieldManager');
    const carryOut = () =>
      manager === null ? this.#carryOut(method, pathname, body) : this.#applyStatus(pathname, body, manager);
    const [status, answer] = fault === 'cut before' ? [0, {}] : carryOut();
    this.carriedOut();
    if (fault === undefined) reply(response, status, answer);
    else response.destroy();
  }

  #watch(collection: string, response: ServerResponse): void {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.flushHeaders();
    const watcher = { collection, response };
    this.#watchers.add(watcher);
    response.on('close', () => this.#watchers.delete(watcher));
  }

  /** A page; the token to continue is the count of the objects before it. */
  #list(collection: string, query: URLSearchParams, response: ServerResponse): void {
    const selector = query.get('labelSelector') ?? '';
    const [name = '', value] = selector.split('=');
    const isSelected = (object: JsonObject): boolean =>
      selector === '' || objectIn(objectIn(object, 'metadata'), 'labels')[name] === value;
    const selected = this.list(collection).filter(isSelected);
    const start = Number(query.get('continue') ?? 0);
    const end = start + Number(query.get('limit') ?? Infinity);
    const items = selected.slice(start, end);
    this.largestPage = Math.max(this.largestPage, items.length);
    const next = end < selected.length ? { continue: String(end) } : {};
    reply(response, 200, { metadata: { resourceVersion: String(this.#version), ...next }, items });
  }

  /** Server-side apply of conditions: refused where another manager's condition has other values. */
  #applyStatus(statusPath: string, body: JsonObject, manager: string): readonly [status: number, answer: JsonObject] {
    const path = statusPath.slice(0, -'/status'.length);
    const object = this.#objects.get(path);
    if (!object) return [404, { message: 'not found', details: { name: nameOf(body) } }];
    const { managedFields } = objectIn(object, 'metadata');
    const isOwn = isArray(managedFields) && managedFields.some((entry) => isObject(entry) && entry.manager === manager);
    const known = objectIn(object, 'status').conditions;
    if (isArray(known) && known.length > 0 && !isOwn) return CONFLICT;
    const { conditions = [] } = objectIn(body, 'status');
    const owned = isArray(conditions)
      ? conditions.flatMap((each) => (isObject(each) && typeof each.type === 'string' ? [each.type] : []))
      : [];
    const fields = Object.fromEntries(owned.map((type) => [`k:{"type":"${type}"}`, { 'f:message': {} }]));
    const entry = { manager, subresource: 'status', fieldsV1: { 'f:status': { 'f:conditions': fields } } };
    const metadata = { ...objectIn(object, 'metadata'), managedFields: [entry] };
    return [200, this.put(path.slice(0, path.lastIndexOf('/')), { ...object, metadata, status: { conditions } })];
  }

  #carryOut(method: string, path: string, body: JsonObject): readonly [status: number, answer: JsonObject] {
    if (method === 'POST') {
      return this.#objects.has(`${path}/${nameOf(body)}`) ? CONFLICT : [201, this.put(path, body)];
    }
    const object = this.#objects.get(path);
    if (!object) return path.endsWith(STATUS) ? this.#carryOut(method, path.slice(0, -STATUS.length), body) : NOT_FOUND;
    const expected = method === 'DELETE' ? objectIn(body, 'preconditions') : objectIn(body, 'metadata');
    const current = objectIn(object, 'metadata');
    for (const field of ['uid', 'resourceVersion'])
      if (typeof expected[field] === 'string' && expected[field] !== current[field]) return CONFLICT;
    if (method === 'DELETE') {
      this.delete(path);
      return [200, this.#objects.get(path) ?? { kind: 'Status', status: 'Success' }];
    }
    if (method === 'GET') return [200, object];
    const collection = path.slice(0, path.lastIndexOf('/'));
    const changed = this.put(collection, method === 'PATCH' ? merge(object, body) : body);
    const { finalizers, deletionTimestamp } = objectIn(changed, 'metadata');
    const isEnded = deletionTimestamp !== undefined && isArray(finalizers) && finalizers.length === 0;
    if (isEnded) this.delete(path);
    return [200, changed];
  }
}

const VERBS = ['get', 'list', 'watch', 'create', 'update', 'patch', 'delete'];
const CONFLICT = [409, { message: 'the object has been modified' }] as const;
const NOT_FOUND = [404, { message: 'not found' }] as const;

/** A JSON merge patch (RFC 7396). */
function merge(target: JsonObject, patch: JsonObject): JsonObject {
  const kept = Object.entries(target).filter(([name]) => patch[name] === undefined);
  const changed = Object.entries(patch).flatMap(([name, value]): [string, Json][] =>
    value === null ? [] : [[name, isObject(value) ? merge(objectIn(target, name), value) : value]],
  );
  return Object.fromEntries([...kept, ...changed]);
}

function nameOf(object: JsonObject): string {
  const { name } = objectIn(object, 'metadata');
  return typeof name === 'string' ? name : '';
}

function reply(response: ServerResponse, status: number, body: JsonObject): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(formatJson(body));
}

async function bodyOf(request: IncomingMessage): Promise<JsonObject> {
  const chunks: Buffer[] = [];
  const stream: AsyncIterable<Buffer> = request;
  for await (const chunk of stream) chunks.push(chunk);
  const body = parseJson(Buffer.concat(chunks).toString() || '{}');
  return isObject(body) ? body : {};
}
