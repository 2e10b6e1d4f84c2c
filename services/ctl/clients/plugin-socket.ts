import { request } from 'node:http';

import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

import { assertReachable } from './reach.js';

const ENTRY = z.object({
  attachment: z.string(),
  action: z.string(),
  order: z.number(),
  since: z.iso.datetime(),
  reason: z.string(),
  /** Failure of the last attempt; null before the first attempt. */
  lastFault: z.string().nullable(),
  /** IPAM plugins that the addresses are released to. */
  providers: z.array(z.string()),
  /** The allocation to release; null where it is not known. */
  held: z.array(z.object({ address: z.string(), sequenceNumber: z.string() })).nullable(),
});

const JOURNAL = z.object({
  entries: z.array(ENTRY),
  /** Files of entries that the plugin cannot read. */
  unreadable: z.array(z.object({ path: z.string(), fault: z.string() })),
  /** Why a restart could lose an entry, or restore a removed one; null when it could not. */
  fault: z.string().nullable(),
});

const DISCARD_ANSWER = z.object({ discarded: ENTRY, fault: JOURNAL.shape.fault });

const INTERVAL = z.object({
  name: z.string(),
  /** A phase of PHASES, or one of a later release. */
  phase: z.string(),
  startMs: z.number(),
  durationMs: z.number(),
  depth: z.number(),
});

const COMMAND = z.object({
  startedAt: z.iso.datetime(),
  command: z.string(),
  pod: z.object({ namespace: z.string(), name: z.string(), uid: z.string() }).nullable().default(null),
  containerId: z.string().nullable().default(null),
  network: z.string().nullable().default(null),
  interface: z.string().nullable().default(null),
  /** `success`, or the failure's code. */
  result: z.string(),
  message: z.string().nullable().default(null),
  durationMs: z.number(),
  addresses: z.array(z.string()),
  traceId: z.string().nullable().default(null),
  intervals: z.array(INTERVAL),
});

const COMMANDS = z.object({ node: z.string(), commands: z.array(COMMAND) });

/** The CNI error object of the plugin. */
const REFUSAL = z.object({ msg: z.string() });

/** STATUS of a node that is not ready: code 50, or 51 where existing pods are at risk too. */
const NOT_READY = z.object({ code: z.literal([50, 51]), msg: z.string() });

/** Directory of the other IPAM plugins of the configuration. */
const CNI_PATH = '/opt/cni/bin';

export type DiscardAnswer = z.infer<typeof DISCARD_ANSWER>;
export type Command = z.infer<typeof COMMAND>;
export type Commands = z.infer<typeof COMMANDS>;
export type Journal = z.infer<typeof JOURNAL>;
export type JournalEntry = z.infer<typeof ENTRY>;
export interface PluginSocketOptions {
  /** Absolute path of the resident plugin's unix socket. */
  readonly path: string;
  /** The option that sets another path. */
  readonly option: string;
  readonly clock: Clock;
  /** Deadline of the command, in epoch milliseconds. */
  readonly deadlineMs: () => number;
  /** Sends the requests to another node. Default: to the socket. */
  readonly relay?: { readonly address: string; exchange(request: PluginRequest): Promise<PluginAnswer> } | undefined;
}

const NAME = 'podwire-node';
const OK = 200;
const NOT_FOUND = 404;
const GONE = 410;

/** The resident plugin, which speaks HTTP on its unix socket. Methods throw Failure UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED. */
export class PluginSocket {
  readonly #options: PluginSocketOptions;

  constructor(options: PluginSocketOptions) {
    this.#options = options;
  }

  /** Absolute path of the socket, or the node that is called. */
  get path(): string {
    return this.#options.relay?.address ?? this.#options.path;
  }

  /** The last CNI commands of the node, newest first. */
  commands(): Promise<Commands> {
    return this.#request({ method: 'GET', path: '/commands' }, COMMANDS);
  }

  /** The node's pending releases. */
  journal(): Promise<Journal> {
    return this.#request({ method: 'GET', path: '/journal' }, JOURNAL);
  }

  /** Retries all entries immediately, and waits for the result. @returns the entries that are left */
  retryJournal(): Promise<Journal> {
    return this.#request({ method: 'POST', path: '/journal/retry' }, JOURNAL);
  }

  /**
   * Discards the entry of an attachment, after an attempt in flight has ended.
   * @throws Failure ATTACHMENT_NOT_FOUND where there is no such entry
   */
  discardEntry(attachment: string): Promise<DiscardAnswer> {
    const body = JSON.stringify({ attachment });
    return this.#request({ method: 'POST', path: '/journal/discard', body }, DISCARD_ANSWER);
  }

  /**
   * CNI's STATUS, as the runtime calls it.
   * @param configuration - JSON text of the plugin's member of the network configuration
   * @returns why the node is not ready; null where it is ready
   */
  status(configuration: string): Promise<{ readonly reason: string | null }> {
    return this.#status(configuration, {});
  }

  /**
   * Whether an ADD could succeed: STATUS, strictly as specified.
   * @param configuration - JSON text of the plugin's member of the network configuration
   * @returns why an ADD would fail; null where it could succeed
   */
  strictStatus(configuration: string): Promise<{ readonly reason: string | null }> {
    return this.#status(configuration, { 'podwire-strict': 'true' });
  }

  async #status(
    configuration: string,
    extraHeaders: Readonly<Record<string, string>>,
  ): Promise<{ readonly reason: string | null }> {
    const headers = { 'cni-command': 'STATUS', 'cni-path': CNI_PATH, ...extraHeaders };
    const { status, body } = await this.#exchange({ method: 'POST', path: '/cni', headers, body: configuration });
    if (status === OK) return { reason: null };
    const answer = parseJson(body);
    const notReady = NOT_READY.safeParse(answer);
    if (notReady.success) return { reason: notReady.data.msg };
    const refusal = REFUSAL.safeParse(answer);
    throw new Failure('INVALID_REQUEST', `${NAME} refused STATUS: ${refusal.success ? refusal.data.msg : body.trim()}`);
  }

  async #exchange(pluginRequest: PluginRequest): Promise<PluginAnswer> {
    const { path: socketPath, option, clock, deadlineMs, relay } = this.#options;
    if (relay) return relay.exchange(pluginRequest);
    const timeoutMs = Math.max(1, deadlineMs() - clock.nowMs());
    const endpoint = { service: NAME, address: `unix:${socketPath}`, option };
    await assertReachable(endpoint, { timeoutMs, timeoutOption: '--timeout' });
    return send({ socketPath, option, timeoutMs, ...pluginRequest });
  }

  async #request<Answer>(
    { method, path, body: requestBody }: PluginRequest,
    answer: z.ZodType<Answer>,
  ): Promise<Answer> {
    const { status, body } = await this.#exchange({ method, path, body: requestBody });
    const parsed = status === OK ? answer.safeParse(parseJson(body)) : undefined;
    if (parsed?.success) return parsed.data;
    const subject = `${NAME} at ${this.path}: ${method} ${path}`;
    if (status === OK || status === NOT_FOUND)
      throw new Failure(
        'UNIMPLEMENTED',
        `${subject}: the plugin is of another release than podwirectl; use the same release of both`,
      );
    const refusal = REFUSAL.safeParse(parseJson(body));
    if (status === GONE && refusal.success) throw new Failure('ATTACHMENT_NOT_FOUND', refusal.data.msg);
    const text = refusal.success ? refusal.data.msg : body.trim();
    throw new Failure('INTERNAL', `${subject}: answered ${status}: ${text}`);
  }
}

/** An HTTP response. */
export interface PluginAnswer {
  readonly status: number;
  readonly body: string;
}

/** A request to the server of CNI commands. */
export interface PluginRequest {
  readonly method: string;
  readonly path: string;
  readonly body?: string | undefined;
  readonly headers?: Readonly<Record<string, string>>;
}

interface SocketRequest extends PluginRequest {
  readonly socketPath: string;
  readonly option: string;
  readonly timeoutMs: number;
}

function send({
  method,
  path,
  body: requestBody,
  headers,
  socketPath,
  option,
  timeoutMs,
}: SocketRequest): Promise<PluginAnswer> {
  return new Promise((resolve, reject) => {
    const fail = (cause: unknown): void => {
      const timedOut = cause instanceof Error && cause.name === 'TimeoutError';
      const reason = timedOut
        ? `no answer within ${timeoutMs} ms; raise it with --timeout`
        : `cannot read the answer: the plugin ended, or another program listens there; see its log, or set another socket with ${option} (${String(cause)})`;
      const code = timedOut ? 'DEADLINE_EXCEEDED' : 'UNREACHABLE';
      reject(new Failure(code, `${NAME} at ${socketPath}: ${reason}`, { cause }));
    };
    const signal = AbortSignal.timeout(timeoutMs);
    const call = request({ socketPath, path, method, signal, headers: { host: NAME, ...headers } }, (response) => {
      let body = '';
      response.setEncoding('utf8').on('data', (chunk: string) => (body += chunk));
      response.once('end', () => resolve({ status: response.statusCode ?? 0, body })).once('error', fail);
    });
    call.once('error', (error) => fail(signal.aborted ? signal.reason : error)).end(requestBody);
  });
}
