import { request } from 'node:http';

import { Failure } from '@podwire/shared/failure/failure';
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
  /** The allocation that is meant; null where it is not known. */
  held: z.array(z.object({ address: z.string(), sequenceNumber: z.string() })).nullable(),
});

const JOURNAL = z.object({
  entries: z.array(ENTRY),
  /** Why a restart could lose something; null when it could not. */
  fault: z.string().nullable(),
});

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

/** The resident plugin, which speaks HTTP on its unix socket. Methods throw Failure UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED. */
export class PluginSocket {
  readonly #options: PluginSocketOptions;

  constructor(options: PluginSocketOptions) {
    this.#options = options;
  }

  /** What waits to be done on the node. */
  journal(): Promise<Journal> {
    return this.#ask('GET', '/journal');
  }

  /** Has it done at once, and waits for a round over all entries. @returns what waits then */
  retryJournal(): Promise<Journal> {
    return this.#ask('POST', '/journal/retry');
  }

  async #ask(method: string, path: string): Promise<Journal> {
    const { path: socketPath, option, clock, deadlineMs } = this.#options;
    const timeoutMs = Math.max(1, deadlineMs - clock.nowMs());
    await assertReachable(NAME, { address: `unix:${socketPath}`, option }, timeoutMs);
    const { status, body } = await send({ method, path, socketPath, timeoutMs });
    const parsed = status === OK ? JOURNAL.safeParse(parseJson(body)) : undefined;
    if (parsed?.success) return parsed.data;
    const subject = `${NAME} at ${socketPath}: ${method} ${path}`;
    if (status === OK || status === NOT_FOUND)
      throw new Failure(
        'UNIMPLEMENTED',
        `${subject}: its release is another one than that of podwirectl; use them of one`,
      );
    throw new Failure('INTERNAL', `${subject}: answered ${status}: ${body.trim()}`);
  }
}

interface Sending {
  readonly method: string;
  readonly path: string;
  readonly socketPath: string;
  readonly timeoutMs: number;
}

function send({ method, path, socketPath, timeoutMs }: Sending): Promise<{ status: number; body: string }> {
  return new Promise((resolve, reject) => {
    const fail = (cause: unknown): void => {
      const timedOut = cause instanceof Error && cause.name === 'TimeoutError';
      const reason = timedOut ? `no answer within ${timeoutMs} ms; give more with --timeout` : String(cause);
      const failure = new Failure(
        timedOut ? 'DEADLINE_EXCEEDED' : 'UNREACHABLE',
        `${NAME} at ${socketPath}: ${reason}`,
        {
          cause,
        },
      );
      reject(failure);
    };
    const signal = AbortSignal.timeout(timeoutMs);
    const call = request({ socketPath, path, method, signal, headers: { host: NAME } }, (response) => {
      let body = '';
      response.setEncoding('utf8').on('data', (chunk: string) => (body += chunk));
      response.once('end', () => resolve({ status: response.statusCode ?? 0, body })).once('error', fail);
    });
    call.once('error', (error) => fail(signal.aborted ? signal.reason : error)).end();
  });
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
