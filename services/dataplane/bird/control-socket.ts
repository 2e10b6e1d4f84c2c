import { connect, type Socket } from 'node:net';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

interface ControlOptions {
  /** Path of BIRD's control socket. */
  readonly path: string;
  readonly clock: Clock;
  /** Timeout of one answer. BIRD reads a configuration of some megabytes within a second. */
  readonly replyTimeoutMs: number;
  /** Called once when the connection has ended for any reason. */
  readonly onLost: () => void;
}

/** A connection to BIRD's control socket, with the protocol of `birdc`. One command at a time. */
export interface BirdControl {
  /**
   * Runs a command, which must not contain a line end.
   * @returns its answer, also a refusal
   * @throws Failure BIRD_UNREACHABLE when the connection is lost or BIRD does not answer in time; the connection is then closed
   */
  run(command: string): Promise<Reply>;
  close(): void;
}

/**
 * Connects, and waits for BIRD's greeting.
 * @throws Failure BIRD_UNREACHABLE
 */
export async function openControl(options: ControlOptions): Promise<BirdControl> {
  const control = new ControlSocket(options);
  await control.greeted();
  return control;
}

interface PendingReply {
  readonly resolve: (reply: Reply) => void;
  readonly reject: (failure: Failure) => void;
}

class ControlSocket implements BirdControl {
  readonly #options: ControlOptions;
  readonly #socket: Socket;
  readonly #reader = new ReplyReader();
  readonly #pending: PendingReply[] = [];
  #failure: Failure | undefined;

  constructor(options: ControlOptions) {
    this.#options = options;
    this.#socket = connect(options.path);
    this.#socket.setEncoding('utf8');
    this.#socket.on('data', (piece: string) => this.#receive(piece));
    this.#socket.on('error', (error) => this.#fail(error.message));
    this.#socket.on('close', () => this.#fail('the connection was closed'));
  }

  greeted(): Promise<Reply> {
    return this.#reply('greeting');
  }

  run(command: string): Promise<Reply> {
    const reply = this.#reply(command);
    if (!this.#failure) this.#socket.write(`${command}\n`);
    return reply;
  }

  close(): void {
    this.#fail('this side closed the connection');
  }

  async #reply(subject: string): Promise<Reply> {
    if (this.#failure) throw this.#failure;
    const answered = new AbortController();
    const { clock, replyTimeoutMs } = this.#options;
    void clock.sleep(replyTimeoutMs, answered.signal).then((end) => {
      if (end === 'elapsed') this.#fail(`no answer to "${subject}" within ${replyTimeoutMs} ms`);
    });
    try {
      return await new Promise((resolve, reject) => this.#pending.push({ resolve, reject }));
    } finally {
      answered.abort();
    }
  }

  #receive(piece: string): void {
    try {
      for (const reply of this.#reader.push(piece)) this.#pending.shift()?.resolve(reply);
    } catch (error) {
      this.#fail(`invalid reply: ${String(error)}`);
    }
  }

  #fail(reason: string): void {
    if (this.#failure) return;
    const { path, onLost } = this.#options;
    const advice = 'check that BIRD runs and that its control socket (-s) is this one';
    this.#failure = new Failure('BIRD_UNREACHABLE', `BIRD at ${path}: ${reason}; ${advice}`);
    this.#socket.destroy();
    for (const { reject } of this.#pending.splice(0)) reject(this.#failure);
    onLost();
  }
}

/** One line of a reply on BIRD's control socket. */
interface ReplyLine {
  /** 0xxx done, 1xxx data, 2xxx headings, 8xxx refused, 9xxx not understood. */
  readonly code: number;
  readonly text: string;
}

/** BIRD's answer to one command: the last line has the result. */
export interface Reply {
  readonly lines: readonly ReplyLine[];
}

/** Code of the last line. */
export function codeOf({ lines }: Reply): number {
  return lines.at(-1)?.code ?? 0;
}

export function isRefusal(reply: Reply): boolean {
  return codeOf(reply) >= 8000;
}

/** The last line, with the result. */
export function outcomeOf({ lines }: Reply): string {
  return lines.at(-1)?.text ?? '';
}

/** Longest accepted reply in characters: with thousands of sessions `show protocols all` writes a few megabytes. */
const MAX_REPLY_LENGTH = 64 * 1024 * 1024;

/**
 * Assembles replies from the socket's data, in pieces of any size.
 *
 * A line is `CODE-text` when more follow, `CODE text` when it is the last of its reply, or ` text` with the code of the line
 * before; lines that begin with `+` are asynchronous messages, of commands that this side never sends.
 */
export class ReplyReader {
  #rest = '';
  #lines: ReplyLine[] = [];
  #length = 0;

  /**
   * @returns the replies that this piece completes
   * @throws RangeError when the peer is not BIRD
   */
  push(piece: string): Reply[] {
    const texts = (this.#rest + piece).split('\n');
    this.#rest = texts.pop() ?? '';
    this.#length += piece.length;
    if (this.#length > MAX_REPLY_LENGTH) throw new RangeError(`reply of more than ${MAX_REPLY_LENGTH} characters`);
    return texts.flatMap((text) => this.#line(text) ?? []);
  }

  #line(text: string): Reply | undefined {
    if (text.startsWith('+')) return undefined;
    const match = /^(\d{4})([ -])(.*)$/.exec(text);
    if (!match) {
      if (!text.startsWith(' ') && text !== '') throw new RangeError(`line without a code: ${text.slice(0, 80)}`);
      this.#lines.push({ code: this.#lines.at(-1)?.code ?? 0, text: text.slice(1) });
      return undefined;
    }
    this.#lines.push({ code: Number(match[1]), text: match[3] ?? '' });
    if (match[2] === '-') return undefined;
    const lines = this.#lines;
    this.#lines = [];
    this.#length = 0;
    return { lines };
  }
}
