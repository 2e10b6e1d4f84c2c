import { connect, type Socket } from 'node:net';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import { ReplyReader, type Reply } from './control-reply.js';

export interface ControlOptions {
  /** Path of BIRD's control socket. */
  readonly path: string;
  readonly clock: Clock;
  /** How long BIRD may take for one answer. It reads a configuration of some megabytes within a second. */
  readonly replyTimeoutMs: number;
  /** Called once, when the connection has ended, for whatever reason. */
  readonly onLost: () => void;
}

/** A connection to BIRD's control socket, which speaks what `birdc` speaks. One command at a time. */
export interface BirdControl {
  /**
   * Has BIRD carry out a command, which must hold no line end.
   * @returns its answer, also when it refuses
   * @throws Failure BIRD_UNREACHABLE when the connection is lost or BIRD does not answer in time; the connection is closed then
   */
  ask(command: string): Promise<Reply>;
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

interface Waiter {
  readonly resolve: (reply: Reply) => void;
  readonly reject: (failure: Failure) => void;
}

class ControlSocket implements BirdControl {
  readonly #options: ControlOptions;
  readonly #socket: Socket;
  readonly #reader = new ReplyReader();
  readonly #waiters: Waiter[] = [];
  #lost: Failure | undefined;

  constructor(options: ControlOptions) {
    this.#options = options;
    this.#socket = connect(options.path);
    this.#socket.setEncoding('utf8');
    this.#socket.on('data', (piece: string) => this.#take(piece));
    this.#socket.on('error', (error) => this.#lose(error.message));
    this.#socket.on('close', () => this.#lose('the connection was closed'));
  }

  greeted(): Promise<Reply> {
    return this.#reply('greeting');
  }

  ask(command: string): Promise<Reply> {
    const reply = this.#reply(command);
    if (!this.#lost) this.#socket.write(`${command}\n`);
    return reply;
  }

  close(): void {
    this.#lose('this side closed the connection');
  }

  async #reply(what: string): Promise<Reply> {
    if (this.#lost) throw this.#lost;
    const answered = new AbortController();
    const { clock, replyTimeoutMs } = this.#options;
    void clock.sleep(replyTimeoutMs, answered.signal).then((end) => {
      if (end === 'elapsed') this.#lose(`no answer to "${what}" within ${replyTimeoutMs} ms`);
    });
    try {
      return await new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
    } finally {
      answered.abort();
    }
  }

  #take(piece: string): void {
    try {
      for (const reply of this.#reader.push(piece)) this.#waiters.shift()?.resolve(reply);
    } catch (error) {
      this.#lose(`not BIRD's protocol: ${String(error)}`);
    }
  }

  #lose(reason: string): void {
    if (this.#lost) return;
    const { path, onLost } = this.#options;
    const advice = 'see that BIRD runs and that its control socket (-s) is this one';
    this.#lost = new Failure('BIRD_UNREACHABLE', `BIRD at ${path}: ${reason}; ${advice}`);
    this.#socket.destroy();
    for (const { reject } of this.#waiters.splice(0)) reject(this.#lost);
    onLost();
  }
}
