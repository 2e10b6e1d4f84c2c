import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

/** A call for a node, as it travels on the node's stream. */
export interface NodeCall<Request> {
  /** Unique among the calls of the connection. */
  readonly number: number;
  readonly timeoutMs: number;
  readonly request: Request;
}

/** A part of a node's answer to a call. */
export interface AnswerPart {
  readonly callNumber: number;
  readonly part: Uint8Array;
  readonly isLast: boolean;
  /** Why the call failed; only in the last part. */
  readonly failure: Failure | undefined;
}

/** A node that is or was connected to this process. */
export interface KnownNode<Report> {
  readonly name: string;
  readonly isConnected: boolean;
  /** When the node was connected last, in epoch milliseconds; the present for a connected one. */
  readonly contactAtMs: number;
  readonly report: Report;
}

/** Calls that a node executes at once. */
const MAX_CALLS_COUNT = 16;

/** The longest answer, in bytes: a reader that does not keep up costs this much memory. */
const MAX_ANSWER_BYTES = 64 * 1024 * 1024;

/** How long an answer may take beyond the time limit that its node has, in milliseconds. */
const ANSWER_GRACE_MS = 500;

/** The nodes that are connected to this process, and the last reports of nodes that were. */
export class NodeConnections<Report, Request> {
  readonly #clock: Clock;
  /** Open connections, the latest one last: a node that looks for further podwire-ipam has two for a moment. */
  readonly #open = new Map<string, NodeConnection<Report, Request>[]>();
  /** Nodes without an open connection. */
  readonly #ended = new Map<string, { readonly report: Report; readonly atMs: number }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The latest connection of a node gets the calls, and its report counts. */
  open(name: string, report: Report): NodeConnection<Report, Request> {
    const connection = new NodeConnection<Report, Request>(name, this.#clock, report, () =>
      this.#close(name, connection),
    );
    this.#open.set(name, [...(this.#open.get(name) ?? []), connection]);
    return connection;
  }

  /** @returns undefined: it was not connected since this process started */
  get(name: string): KnownNode<Report> | undefined {
    const latest = this.#open.get(name)?.at(-1);
    if (latest) return { name, isConnected: true, contactAtMs: this.#clock.nowMs(), report: latest.latestReport };
    const ended = this.#ended.get(name);
    return ended && { name, isConnected: false, contactAtMs: ended.atMs, report: ended.report };
  }

  get connectedNames(): Iterable<string> {
    return this.#open.keys();
  }

  /** Forgets nodes that are neither connected nor registered. */
  retain(registered: ReadonlySet<string>): void {
    for (const name of this.#ended.keys()) if (!registered.has(name)) this.#ended.delete(name);
  }

  /** @returns the parts of the answer @throws Failure UNREACHABLE, DEADLINE_EXCEEDED, or the node's */
  call(name: string, request: Request, timeoutMs: number, signal: AbortSignal): AsyncIterable<Uint8Array> {
    const connection = this.#open.get(name)?.at(-1);
    if (connection) return connection.call(request, timeoutMs, signal);
    throw new Failure(
      'UNREACHABLE',
      `node "${name}": it is not connected to this podwire-ipam; see "podwirectl status", and the log of podwire-node there`,
    );
  }

  #close(name: string, connection: NodeConnection<Report, Request>): void {
    const rest = (this.#open.get(name) ?? []).filter((other) => other !== connection);
    if (rest.length > 0) this.#open.set(name, rest);
    else {
      this.#open.delete(name);
      this.#ended.set(name, { report: connection.latestReport, atMs: this.#clock.nowMs() });
    }
  }
}

/** The stream of one node. */
class NodeConnection<Report, Request> {
  readonly #name: string;
  readonly #clock: Clock;
  readonly #closed: () => void;
  /** The node's state, as this connection reported it last. */
  latestReport: Report;
  readonly #unsent = new Queue<NodeCall<Request>>();
  readonly #answers = new Map<number, Answer>();
  #latestNumber = 0;

  constructor(name: string, clock: Clock, report: Report, closed: () => void) {
    this.#name = name;
    this.#clock = clock;
    this.latestReport = report;
    this.#closed = closed;
  }

  /** Parts of a call that has ended already are dropped. */
  answer({ callNumber, part, isLast, failure }: AnswerPart): void {
    const answer = this.#answers.get(callNumber);
    if (!answer) return;
    answer.bytes += part.length;
    if (part.length > 0) answer.parts.push(part);
    if (answer.bytes > MAX_ANSWER_BYTES)
      answer.parts.end(new Failure('INTERNAL', `node "${this.#name}": its answer exceeds ${MAX_ANSWER_BYTES} bytes`));
    if (isLast) answer.parts.end(failure);
  }

  /** The calls to send to the node, until the signal fires. */
  async *calls(signal: AbortSignal): AsyncGenerator<NodeCall<Request>, void, void> {
    const end = (): void => this.#unsent.end();
    signal.addEventListener('abort', end, { once: true });
    if (signal.aborted) end();
    yield* this.#unsent.items();
  }

  async *call(request: Request, timeoutMs: number, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    const node = `node "${this.#name}"`;
    if (this.#answers.size >= MAX_CALLS_COUNT)
      throw new Failure('UNREACHABLE', `${node}: it executes ${MAX_CALLS_COUNT} calls already; repeat the call later`);
    const parts = new Queue<Uint8Array>();
    const number = ++this.#latestNumber;
    this.#answers.set(number, { parts, bytes: 0 });
    const end = (): void => parts.end();
    signal.addEventListener('abort', end, { once: true });
    const cancel = this.#clock.after(timeoutMs + ANSWER_GRACE_MS, () =>
      parts.end(new Failure('DEADLINE_EXCEEDED', `${node}: no answer within ${timeoutMs} ms; raise the time limit`)),
    );
    this.#unsent.push({ number, timeoutMs, request });
    try {
      yield* parts.items();
    } finally {
      cancel();
      signal.removeEventListener('abort', end);
      this.#answers.delete(number);
    }
  }

  /** The stream ended. */
  close(): void {
    this.#closed();
    const text = `node "${this.#name}": its connection ended; a change may have been made: read the state, and repeat the call`;
    for (const { parts } of this.#answers.values()) parts.end(new Failure('UNREACHABLE', text));
  }
}

interface Answer {
  readonly parts: Queue<Uint8Array>;
  /** Sum of all parts so far. */
  bytes: number;
}

/** Items between one writer and one reader. */
class Queue<Item extends object> {
  readonly #items: Item[] = [];
  #ended: { readonly failure: Failure | undefined } | undefined;
  #wake: () => void = () => undefined;

  push(item: Item): void {
    if (this.#ended) return;
    this.#items.push(item);
    this.#wake();
  }

  /** Ends after the items so far. Only the first end counts. */
  end(failure?: Failure): void {
    this.#ended ??= { failure };
    this.#wake();
  }

  async *items(): AsyncGenerator<Item, void, void> {
    for (;;) {
      const item = this.#items.shift();
      if (item) yield item;
      else if (this.#ended?.failure) throw this.#ended.failure;
      else if (this.#ended) return;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}
