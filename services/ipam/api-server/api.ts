import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { Agent, request as httpsRequest } from 'node:https';
import { join } from 'node:path';
import { StringDecoder } from 'node:string_decoder';

import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { messageOf } from '@podwire/shared/failure/thrown';
import { counter, onFirstUse } from '@podwire/shared/telemetry/instruments';

import { isObject, parseJson, type Json } from '../records/json/json.js';

/**
 * The API server of the cluster that podwire-ipam runs in. A client of its own: the official library needs 72 further
 * packages and 76 MiB of memory, more than podwire-ipam itself, and its current release does not run on Node.js 20.
 */

/** Where the kubelet mounts the token, the authority and the namespace of the pod's service account. */
export const SERVICE_ACCOUNT_DIRECTORY = '/var/run/secrets/kubernetes.io/serviceaccount';

const DEFAULT_PORT = '443';
const REQUEST_TIMEOUT_MS = 10_000;

/** Longest answer, or line of a watch, that is read, in bytes: etcd limits objects to 1.5 MiB; lists are read in pages. */
const MAX_ANSWER_BYTES = 32 * 1024 * 1024;

/** How long a watch may be silent. The API server sends a bookmark each minute (KEP-956). */
const WATCH_IDLE_MS = 180_000;

/** HTTP status of a request that no role permits; of every request, until a starting API server has loaded its roles. */
const FORBIDDEN = 403;

/** HTTP status of a resource version that the API server does not keep any more. */
const GONE = 410;

/** HTTP status of an object that its definition does not allow. */
const UNPROCESSABLE = 422;

/** HTTP status of a request that the API server refuses while it is overloaded (API priority and fairness). */
const TOO_MANY_REQUESTS = 429;

/** Content type of a JSON merge patch (RFC 7396). */
export const MERGE_PATCH = 'application/merge-patch+json';

/** Details of a failure of a request that had no effect. */
export const NOT_EXECUTED = { executed: 'no' };

const requestsCount = onFirstUse(() => counter('podwire.ipam.kubernetes.requests'));

/** Longest time that a refusing API server can ask for before the next request, in milliseconds. */
const MAX_RETRY_AFTER_MS = 10_000;

/** The pause before a failed request is repeated: the back-off, or longer if the API server asked for it. */
export function pauseMs(failure: unknown, backoff: number): number {
  const seconds = failure instanceof Failure ? Number(failure.details.retryAfterSeconds ?? 0) : 0;
  return Math.max(backoff, Math.min(seconds * 1000, MAX_RETRY_AFTER_MS));
}

export interface ApiRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  /** Path with its query: `/api/v1/nodes?limit=500`. */
  readonly path: string;
  /** Sent as JSON. */
  readonly body?: unknown;
  /** JSON that is sent as it is, instead of a body: with integers beyond 2^53. */
  readonly json?: string;
  /** Default: `application/json`. */
  readonly contentType?: string;
  /** Default: `application/json`. */
  readonly accept?: string;
  readonly signal?: AbortSignal;
}

export interface ApiAnswer {
  /** 200 to 299, 404 or 409; every other status is a failure. */
  readonly status: number;
  /** The parsed JSON; undefined if it is none. */
  readonly body: Json | undefined;
}

export interface WatchRequest {
  /** Path with its query: `/api/v1/nodes?watch=1&resourceVersion=7`. */
  readonly path: string;
  readonly signal: AbortSignal;
  /** Called when the API server has accepted the watch, before the first event. */
  readonly opened?: () => void;
}

/** One event of a watch (Kubernetes API concepts, "Efficient detection of changes"). */
export interface WatchEvent {
  /** ADDED, MODIFIED, DELETED, BOOKMARK, or ERROR, of which the object is a Status. */
  readonly type: string;
  readonly object: unknown;
}

export interface KubernetesApiOptions {
  readonly host: string;
  readonly port: string;
  /** Directory with `token`, `ca.crt` and `namespace`. They are read again for each request: tokens expire. */
  readonly directory: string;
  /** How long a watch may be silent before it ends with a failure, in milliseconds. Default: 180,000. */
  readonly watchIdleMs?: number;
}

const NOT_FOUND = 404;

/** Statuses that the caller decides on: the object is missing, or was changed meanwhile. */
const EXPECTED_STATUSES = [NOT_FOUND, 409];

export class KubernetesApi {
  /** Namespace of podwire-ipam's pod. */
  readonly namespace: string;
  /** Host of the API server: in a cluster an address of its Service. */
  readonly host: string;
  readonly #options: KubernetesApiOptions;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 32 });

  /** @throws Failure INVALID_SETTINGS when the service account is not mounted */
  constructor(options: KubernetesApiOptions) {
    this.#options = options;
    this.host = options.host;
    this.namespace = this.#read('namespace');
  }

  /**
   * The API server that the kubelet's variables name.
   * @throws Failure INVALID_SETTINGS outside of a cluster
   */
  static inCluster(env: Readonly<Record<string, string | undefined>>): KubernetesApi {
    const host = env.KUBERNETES_SERVICE_HOST ?? '';
    if (host === '')
      throw new Failure(
        'INVALID_SETTINGS',
        'KUBERNETES_SERVICE_HOST: is empty, and PODWIRE_IPAM_NODE_CONTROLLER and PODWIRE_IPAM_NODE_TOKENS need the API server; run podwire-ipam in a pod, or set it to the host of the API server',
      );
    const port = env.KUBERNETES_SERVICE_PORT ?? DEFAULT_PORT;
    return new KubernetesApi({ host, port, directory: SERVICE_ACCOUNT_DIRECTORY });
  }

  /**
   * Sends one request, without retries.
   * @throws Failure UNREACHABLE when the API server does not answer, is overloaded or starting, ACCESS_DENIED when it refuses
   * podwire-ipam, INVALID_REQUEST when the definition of the object does not allow it, DEADLINE_EXCEEDED after 10 s, CANCELLED
   */
  async send(request: ApiRequest): Promise<ApiAnswer> {
    const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
    const signal = request.signal ? AbortSignal.any([request.signal, timeout]) : timeout;
    let answer: IncomingMessage;
    let text: string;
    try {
      answer = await this.#open(request, signal);
      text = await readText(answer);
    } catch (error) {
      throw this.#failureOf(request, error, timeout);
    }
    const status = statusOf(answer);
    const body = parse(text);
    if ((status >= 200 && status < 300) || EXPECTED_STATUSES.includes(status)) return { status, body };
    throw await this.#refusal(request, answer, body);
  }

  /**
   * Reads a watch until the API server ends it, as it does after some minutes. An expired resource version is an event
   * of type ERROR with the code 410.
   * @throws Failure UNREACHABLE when the connection fails or is silent, ACCESS_DENIED, CANCELLED
   */
  async *watch({ path, signal, opened }: WatchRequest): AsyncGenerator<WatchEvent, void, void> {
    const request = { method: 'GET', path, signal } as const;
    try {
      const response = await this.#open(request, signal, REQUEST_TIMEOUT_MS);
      response.setTimeout(this.#options.watchIdleMs ?? WATCH_IDLE_MS);
      const status = statusOf(response);
      if (status === GONE) yield { type: 'ERROR', object: { code: GONE } };
      else if (status !== OK) throw await this.#refusal(request, response, parse(await readText(response)));
      if (status !== OK) return;
      opened?.();
      for await (const line of linesOf(response)) yield eventOf(line);
    } catch (error) {
      throw this.#failureOf(request, error);
    }
  }

  close(): void {
    this.#agent.destroy();
  }

  /** Subject of messages: `API server at 10.96.0.1:443`. */
  get subject(): string {
    return `API server at ${this.#options.host}:${this.#options.port}`;
  }

  /** @param idleMs - how long the connection may be silent; undefined for any time */
  #open(request: ApiRequest, signal: AbortSignal, idleMs?: number): Promise<IncomingMessage> {
    const { host, port } = this.#options;
    const { method, path, body, json, contentType = 'application/json', accept = 'application/json' } = request;
    const payload = json ?? (body === undefined ? undefined : JSON.stringify(body));
    const options = {
      ...{ host, port, method, path, signal, agent: this.#agent },
      ca: this.#read('ca.crt'),
      headers: {
        authorization: `Bearer ${this.#read('token')}`,
        accept,
        'user-agent': 'podwire-ipam',
        ...(payload === undefined ? {} : { 'content-type': contentType, 'content-length': Buffer.byteLength(payload) }),
      },
    };
    return new Promise((resolve, reject) => {
      let response: IncomingMessage | undefined;
      const sent = httpsRequest(options, (message) => {
        countRequest(request, String(statusOf(message)));
        resolve((response = message));
      });
      sent.on('error', (error) => {
        if (!response && !request.signal?.aborted) countRequest(request, 'none');
        reject(error);
      });
      const end = (): unknown => (response ?? sent).destroy(new Error('sent nothing for too long; connecting again'));
      if (idleMs !== undefined) sent.setTimeout(idleMs, end);
      sent.end(payload);
    });
  }

  #failureOf({ method, path, signal }: ApiRequest, error: unknown, timeout?: AbortSignal): Failure {
    if (error instanceof Failure) return error;
    const subject = `${this.subject}: ${method} ${path}`;
    if (signal?.aborted) {
      const hasTimedOut = failureOfSignal(signal).code === 'DEADLINE_EXCEEDED';
      return new Failure('CANCELLED', `${subject}: ${hasTimedOut ? 'no answer in time' : 'cancelled'}`, {
        cause: error,
      });
    }
    if (timeout?.aborted)
      return new Failure('DEADLINE_EXCEEDED', `${subject}: no answer within ${REQUEST_TIMEOUT_MS} ms`, {
        cause: error,
      });
    return new Failure('UNREACHABLE', `${subject}: ${messageOf(error)}`, { cause: error });
  }

  async #refusal({ method, path }: ApiRequest, answer: IncomingMessage, body: unknown): Promise<Failure> {
    const status = statusOf(answer);
    const text = `${this.subject}: ${method} ${path}: answered ${status}: ${reasonOf(body)}`;
    if (status === TOO_MANY_REQUESTS) {
      const { 'retry-after': retryAfterSeconds = '0' } = answer.headers;
      const details = { ...NOT_EXECUTED, retryAfterSeconds };
      return new Failure('UNREACHABLE', `${text}; it is overloaded, or starting`, { details });
    }
    if (status === GONE || status >= 500) return new Failure('UNREACHABLE', text);
    if (status === UNPROCESSABLE) return new Failure('INVALID_REQUEST', text);
    if (status === FORBIDDEN && (await this.#isStarting()))
      return new Failure('UNREACHABLE', `${text}; it is starting, or its roles do not permit GET /readyz`, {
        details: NOT_EXECUTED,
      });
    const remedy =
      status === NOT_FOUND
        ? 'install its definition: Calico’s objects are in the chart podwire-crds'
        : 'apply the role of podwire-ipam in deploy/kubernetes, and check its service account';
    return new Failure('ACCESS_DENIED', `${text}; ${remedy}`);
  }

  /** Every caller may ask for this, once the API server has loaded its roles. */
  async #isStarting(): Promise<boolean> {
    try {
      const answer = await this.#open({ method: 'GET', path: '/readyz' }, AbortSignal.timeout(REQUEST_TIMEOUT_MS));
      answer.resume();
      return statusOf(answer) === FORBIDDEN || statusOf(answer) >= 500;
    } catch {
      return true;
    }
  }

  #read(name: string): string {
    const path = join(this.#options.directory, name);
    try {
      return readFileSync(path, 'utf8').trim();
    } catch (error) {
      throw new Failure('INVALID_SETTINGS', `${path}: ${messageOf(error)}; mount the service account of podwire-ipam`, {
        cause: error,
      });
    }
  }
}

const OK = 200;

function statusOf({ statusCode }: IncomingMessage): number {
  return statusCode ?? 0;
}

/** @param code - HTTP status, or `none` without an answer */
function countRequest({ method, path }: ApiRequest, code: string): void {
  const [resourcePath = '', query = ''] = path.split('?', 2);
  const list = /(?:^|&)watch=/.test(query) ? 'watch' : query === '' ? 'get' : 'list';
  const verb = method === 'GET' ? list : VERBS[method];
  requestsCount().add(1, { verb, kind: kindOf(resourcePath), code });
}

const VERBS = { POST: 'create', PUT: 'update', PATCH: 'patch', DELETE: 'delete' };

/** The resource of a path, in the plural; `discovery` for the path of a group. */
function kindOf(path: string): string {
  const [, , kind] = /^\/(?:api|apis\/[^/]+)\/[^/]+(\/namespaces\/[^/]+)?(?:\/([^/]+))?/.exec(path) ?? [];
  return kind ?? 'discovery';
}

/** @throws Error when the answer is cut off or too long */
async function readText(response: IncomingMessage): Promise<string> {
  const stream: AsyncIterable<Buffer> = response;
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (bytes > MAX_ANSWER_BYTES) throw new Error(`its answer is longer than ${MAX_ANSWER_BYTES} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

/** The lines of a stream; a last one without a line feed was cut off, and is left out. */
async function* linesOf(response: IncomingMessage): AsyncGenerator<string, void, void> {
  const stream: AsyncIterable<Buffer> = response;
  const decoder = new StringDecoder('utf8');
  let rest = '';
  for await (const chunk of stream) {
    const lines = (rest + decoder.write(chunk)).split('\n');
    rest = lines.pop() ?? '';
    if (rest.length > MAX_ANSWER_BYTES) throw new Error(`an event is longer than ${MAX_ANSWER_BYTES} bytes`);
    yield* lines;
  }
}

function eventOf(line: string): WatchEvent {
  const event = parse(line);
  if (!isObject(event) || typeof event.type !== 'string')
    throw new Error('sent a line that is not an event of a watch');
  return { type: event.type, object: event.object };
}

function parse(text: string): Json | undefined {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

/** Text of a Status object (Kubernetes API conventions, "Response Status Kind"). */
function reasonOf(body: unknown): string {
  return typeof body === 'object' && body !== null && 'message' in body && typeof body.message === 'string'
    ? body.message
    : 'no reason';
}
