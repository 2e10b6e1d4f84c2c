import { request } from 'node:http';

import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

import { assertReachable } from './reach.js';

const ENTRY = z.object({
  attachment: z.string(),
  todo: z.string(),
  order: z.number(),
  since: z.iso.datetime(),
  reason: z.string(),
  /** What the last attempt met; null before there was one. */
  lastFault: z.string().nullable(),
  /** IPAM plugins that the addresses return to; null from a plugin of an earlier release, which does not report them. */
  givers: z.array(z.string()).nullable().default(null),
  /** The allocation that is meant; null where it is not known. */
  held: z.array(z.object({ address: z.string(), sequenceNumber: z.string() })).nullable(),
});

const JOURNAL = z.object({
  entries: z.array(ENTRY),
  /** Files of entries that the plugin cannot read; missing from a plugin of an earlier release. */
  unreadable: z.array(z.object({ path: z.string(), fault: z.string() })).default([]),
  /** Why a restart could lose something, or bring something back; null when it could not. */
  fault: z.string().nullable(),
});

const DISCARDED = z.object({ discarded: ENTRY, fault: JOURNAL.shape.fault });

/** The CNI error object with which the plugin refuses. */
const REFUSAL = z.object({ msg: z.string() });

/** How STATUS says that the node is not ready: 50, or 51 where pods that exist are at risk, too. */
const NOT_READY = z.object({ code: z.literal([50, 51]), msg: z.string() });

/** Where another IPAM plugin of the configuration is looked for. */
const CNI_PATH = '/opt/cni/bin';

export type Discarded = z.infer<typeof DISCARDED>;
export type Journal = z.infer<typeof JOURNAL>;
export type JournalEntry = z.infer<typeof ENTRY>;

export interface PluginSocketOptions {
  /** Absolute path of the resident plugin's unix socket. */
  readonly path: string;
  /** The option that names another path. */
  readonly option: string;
  readonly clock: Clock;
  /** When the command's time is over, in epoch milliseconds. */
  readonly deadlineMs: number;
}

const NAME = 'podwire-plugin';
const OK = 200;
const NOT_FOUND = 404;
const GONE = 410;

/** The resident plugin, which speaks HTTP on its unix socket. Methods throw Failure UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED. */
export class PluginSocket {
  readonly #options: PluginSocketOptions;

  constructor(options: PluginSocketOptions) {
    this.#options = options;
  }

  /** What waits to be done on the node. */
  journal(): Promise<Journal> {
    return this.#ask({ method: 'GET', path: '/journal' }, JOURNAL);
  }

  /** Has it done at once, and waits for a round over all entries. @returns what waits then */
  retryJournal(): Promise<Journal> {
    return this.#ask({ method: 'POST', path: '/journal/retry' }, JOURNAL);
  }

  /**
   * Gives the entry of an attachment up, once an attempt under way is over.
   * @throws Failure ATTACHMENT_NOT_FOUND where there is none (any more)
   */
  discardEntry(attachment: string): Promise<Discarded> {
    const body = JSON.stringify({ attachment });
    return this.#ask({ method: 'POST', path: '/journal/discard', body }, DISCARDED);
  }

  /**
   * CNI's STATUS, as the runtime asks.
   * @param configuration - JSON text of the plugin's member of the network configuration
   * @returns why the node is not ready; null where it is
   */
  status(configuration: string): Promise<{ readonly reason: string | null }> {
    return this.#status(configuration, {});
  }

  /**
   * Whether an ADD could succeed: STATUS by the strict reading of the specification. A plugin of an earlier release answers as to STATUS.
   * @param configuration - JSON text of the plugin's member of the network configuration
   * @returns why it would fail; null where it could
   */
  strictStatus(configuration: string): Promise<{ readonly reason: string | null }> {
    return this.#status(configuration, { 'podwire-strict': 'true' });
  }

  async #status(
    configuration: string,
    reading: Readonly<Record<string, string>>,
  ): Promise<{ readonly reason: string | null }> {
    const headers = { 'cni-command': 'STATUS', 'cni-path': CNI_PATH, ...reading };
    const { status, body } = await this.#exchange({ method: 'POST', path: '/cni', headers, body: configuration });
    if (status === OK) return { reason: null };
    const answer = parseJson(body);
    const notReady = NOT_READY.safeParse(answer);
    if (notReady.success) return { reason: notReady.data.msg };
    const refusal = REFUSAL.safeParse(answer);
    throw new Failure('INVALID_REQUEST', `${NAME} refused STATUS: ${refusal.success ? refusal.data.msg : body.trim()}`);
  }

  async #exchange(asking: Asking): Promise<{ readonly status: number; readonly body: string }> {
    const { path: socketPath, option, clock, deadlineMs } = this.#options;
    const timeoutMs = Math.max(1, deadlineMs - clock.nowMs());
    await assertReachable(NAME, { address: `unix:${socketPath}`, option }, timeoutMs);
    return send({ socketPath, option, timeoutMs, ...asking });
  }

  async #ask<Answer>({ method, path, body: asked }: Asking, answer: z.ZodType<Answer>): Promise<Answer> {
    const { path: socketPath } = this.#options;
    const { status, body } = await this.#exchange({ method, path, body: asked });
    const parsed = status === OK ? answer.safeParse(parseJson(body)) : undefined;
    if (parsed?.success) return parsed.data;
    const subject = `${NAME} at ${socketPath}: ${method} ${path}`;
    if (status === OK || status === NOT_FOUND)
      throw new Failure(
        'UNIMPLEMENTED',
        `${subject}: its release is another one than that of podwirectl; use them of one`,
      );
    const refusal = REFUSAL.safeParse(parseJson(body));
    if (status === GONE && refusal.success) throw new Failure('ATTACHMENT_NOT_FOUND', refusal.data.msg);
    const text = refusal.success ? refusal.data.msg : body.trim();
    throw new Failure('INTERNAL', `${subject}: answered ${status}: ${text}`);
  }
}

interface Asking {
  readonly method: string;
  readonly path: string;
  readonly body?: string | undefined;
  readonly headers?: Readonly<Record<string, string>>;
}

interface Sending extends Asking {
  readonly socketPath: string;
  readonly option: string;
  readonly timeoutMs: number;
}

function send({
  method,
  path,
  body: asked,
  headers,
  socketPath,
  option,
  timeoutMs,
}: Sending): Promise<{ status: number; body: string }> {
  return new Promise((resolve, reject) => {
    const fail = (cause: unknown): void => {
      const timedOut = cause instanceof Error && cause.name === 'TimeoutError';
      const reason = timedOut
        ? `no answer within ${timeoutMs} ms; give more with --timeout`
        : `its answer cannot be read: it ended meanwhile, or is another program; see its log, or name another socket with ${option} (${String(cause)})`;
      const code = timedOut ? 'DEADLINE_EXCEEDED' : 'UNREACHABLE';
      reject(new Failure(code, `${NAME} at ${socketPath}: ${reason}`, { cause }));
    };
    const signal = AbortSignal.timeout(timeoutMs);
    const call = request({ socketPath, path, method, signal, headers: { host: NAME, ...headers } }, (response) => {
      let body = '';
      response.setEncoding('utf8').on('data', (chunk: string) => (body += chunk));
      response.once('end', () => resolve({ status: response.statusCode ?? 0, body })).once('error', fail);
    });
    call.once('error', (error) => fail(signal.aborted ? signal.reason : error)).end(asked);
  });
}
