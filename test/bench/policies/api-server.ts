import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import { join } from 'node:path';

import { SERVICE_ACCOUNT_DIRECTORY } from '@podwire/ipam/api-server/api';
import { CertificateAuthority } from '@podwire/ipam/engine/testing/etcd-server';

/** An object of the API server. */
export interface ApiObject {
  readonly metadata: { readonly name: string; readonly namespace?: string; readonly [field: string]: unknown };
  readonly [field: string]: unknown;
}

/** UID of the namespace kube-system. */
export const CLUSTER_UID = '00000000-0000-4000-8000-000000000001';

/** Objects of a page, as podwire-ipam requests for pods. */
const PAGE_SIZE = 100;

const FIRST_VERSION = 1_000_000;

/** Executes a program in a mount namespace that has the service account where the kubelet mounts one. */
const ENTER = `mount -t tmpfs tmpfs /run && mkdir -p ${SERVICE_ACCOUNT_DIRECTORY} && cp "$1"/* ${SERVICE_ACCOUNT_DIRECTORY} && shift && exec "$@"`;

/**
 * An API server of lists, encoded before they are requested so that it takes little of the processors that it shares with
 * podwire-ipam, and of watches. A list stays as it was; a watch reports what happens after its beginning.
 */
export class PagedApiServer {
  readonly #server: Server;
  readonly #folder: string;
  /** Encoded pages of a path. */
  readonly #pages = new Map<string, readonly Buffer[]>();
  /** Objects of events, by their path. */
  readonly #objects = new Map<string, ApiObject>();
  readonly #watchers = new Map<string, Set<ServerResponse>>();
  #version = FIRST_VERSION;

  private constructor(server: Server, folder: string) {
    this.#server = server;
    this.#folder = folder;
    server.on('request', (request, response) => this.#answer(request, response));
  }

  /** @param folder - for its certificate and the service account */
  static async start(folder: string): Promise<PagedApiServer> {
    const { ca, cert, key } = new CertificateAuthority(join(folder, 'tls')).issue('kube-apiserver');
    const account = join(folder, 'account');
    mkdirSync(account);
    const files = { 'ca.crt': readFileSync(ca), token: 'token-1', namespace: 'podwire-system' };
    for (const [name, content] of Object.entries(files)) writeFileSync(join(account, name), content);
    const server = createServer({ cert: readFileSync(cert), key: readFileSync(key) });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new PagedApiServer(server, folder);
  }

  /** Variables that the kubelet sets. */
  get env(): Readonly<Record<string, string>> {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the API server does not listen');
    return { KUBERNETES_SERVICE_HOST: '127.0.0.1', KUBERNETES_SERVICE_PORT: String(address.port) };
  }

  /** Executes a program with the service account. */
  get launcher(): readonly string[] {
    return ['unshare', '--mount', '--propagation', 'private', 'sh', '-c', ENTER, 'sh', join(this.#folder, 'account')];
  }

  /** @param path - of the list: `/api/v1/pods` */
  setList(path: string, objects: Iterable<ApiObject>): void {
    const pages: string[][] = [[]];
    for (const object of objects) {
      if (pages.at(-1)?.length === PAGE_SIZE) pages.push([]);
      pages.at(-1)?.push(JSON.stringify(object));
    }
    const encoded = pages.map((page, index) => {
      const token = index < pages.length - 1 ? `,"continue":"${index + 1}"` : '';
      return Buffer.from(`{"metadata":{"resourceVersion":"${FIRST_VERSION}"${token}},"items":[${page.join()}]}`);
    });
    this.#pages.set(path, encoded);
  }

  /** Sends an event to the watchers of a list. */
  notify(path: string, type: 'ADDED' | 'MODIFIED' | 'DELETED', object: ApiObject): void {
    const metadata = { ...object.metadata, resourceVersion: String(++this.#version) };
    const own = path.replace(/[^/]+$/, (plural) => `namespaces/${metadata.namespace}/${plural}/${metadata.name}`);
    if (type === 'DELETED') this.#objects.delete(own);
    else this.#objects.set(own, object);
    const line = `${JSON.stringify({ type, object: { ...object, metadata } })}\n`;
    for (const response of this.#watchers.get(path) ?? []) response.write(line);
  }

  async stop(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const { pathname, searchParams } = new URL(request.url ?? '', 'https://localhost');
    const pages = this.#pages.get(pathname);
    const object = this.#objects.get(pathname);
    if (searchParams.has('watch')) {
      response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
      response.socket?.setNoDelay(true);
      const watchers = this.#watchers.get(pathname) ?? new Set();
      this.#watchers.set(pathname, watchers.add(response));
      response.on('close', () => watchers.delete(response));
    } else if (pages) reply(response, 200, pages[Number(searchParams.get('continue') ?? 0)] ?? Buffer.from('{}'));
    else if (object) reply(response, 200, Buffer.from(JSON.stringify(object)));
    else if (request.method === 'GET' && !pathname.startsWith('/api/v1/namespaces/'))
      reply(response, 404, Buffer.from('{"message":"not found"}'));
    else reply(response, 200, Buffer.from(JSON.stringify({ metadata: { name: 'kube-system', uid: CLUSTER_UID } })));
  }
}

function reply(response: ServerResponse, status: number, body: Buffer): void {
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': body.length });
  response.end(body);
}
