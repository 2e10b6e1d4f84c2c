import {
  ClusterServiceService,
  NodeReport,
  type ConnectNodeRequest,
  type ConnectNodeResponse,
  type FailedPod,
  type NodeCall,
  type NodeRequest,
} from '@podwire/proto/podwire/ipam/v1/cluster';
import { Failure } from '@podwire/shared/failure/failure';
import { encodeFailure } from '@podwire/shared/failure/status';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

type Connection = Pick<Peer, 'stream' | 'close' | 'description'>;

export interface ClusterLinkOptions {
  readonly nodeName: string;
  /** The node's connection to podwire-ipam, which stays open. */
  readonly ipam: Connection;
  /** Opens a further connection; of several podwire-ipam behind one address it may lead to another one. */
  readonly connect: () => Connection;
  readonly report: () => NodeReport;
  /** Executes a call. @throws Failure */
  readonly execute: (request: NodeRequest, timeoutMs: number) => AsyncIterable<Uint8Array>;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly log: Logger;
}

/** How often the node's state is compared with the last report, in milliseconds. */
const REPORT_INTERVAL_MS = 5000;

/** Time from a new connection until the node is no longer in the state of one without podwire-ipam, in milliseconds. */
const FIRST_CHANGE_MS = 1000;

const BACKOFF = { baseMs: 500, maxMs: 30_000 };

/** Pauses between connections that look for further podwire-ipam. Each one that leads to a known process doubles the pause. */
const SEARCH = { baseMs: 1000, maxMs: 600_000 };

/** Failed pods between two reports, by pod and code; later ones are left out until they fail again. */
const MAX_FAILED_PODS = 256;

const PART_BYTES = 64 * 1024;

const METHOD = ClusterServiceService.connectNode;

/**
 * Reports this node's state to podwire-ipam, and executes the calls that operators make through it. Where several podwire-ipam serve
 * one datastore, the node connects to each of them, so that any of them can show and reach the node.
 */
export class ClusterLink {
  readonly #options: ClusterLinkOptions;
  readonly #queue: WorkQueue<'connect'>;
  /** The open streams, by the process that they lead to. */
  readonly #streams = new Map<string, NodeStream>();
  /** Ends the wait for the next comparison; undefined: there is no stream. */
  #cancelComparison: (() => void) | undefined;
  /** Connections in a row that led to a known process. */
  #repeatedCount = 0;
  #reportedFailure = '';
  /** Since the last report, by pod and code. */
  readonly #failedPods = new Map<string, FailedPod>();
  #isStopped = false;

  constructor(options: ClusterLinkOptions) {
    this.#options = options;
    const { clock, random, log } = options;
    this.#queue = new WorkQueue({
      reconcile: (_, signal) => this.#open(signal),
      onFailure: (error) => {
        if (!(error instanceof Failure)) throw error;
        // An unreachable podwire-ipam is reported by the calls that pods need.
        if (error.code === 'UNREACHABLE' || error.message === this.#reportedFailure) return;
        this.#reportedFailure = error.message;
        log.warn(`podwire-ipam does not show this node's state: ${error.message}; trying again`);
      },
      retryInMs: exponentialBackoff(BACKOFF, random),
      clock,
    });
  }

  /** Starts; call once. */
  start(): void {
    this.#queue.request('connect');
  }

  /** An ADD failed. One of the podwire-ipam hears of it with the next report. */
  addFailed(pod: NonNullable<FailedPod['pod']>, { code, message }: Pick<FailedPod, 'code' | 'message'>): void {
    const key = `${pod.uid} ${pod.namespace}/${pod.name} ${code}`;
    const count = (this.#failedPods.get(key)?.count ?? 0) + 1;
    if (count > 1 || this.#failedPods.size < MAX_FAILED_PODS) this.#failedPods.set(key, { pod, code, message, count });
  }

  /** Idempotent. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancelComparison?.();
    const stopped = this.#queue.stop();
    for (const stream of this.#streams.values()) stream.close();
    await stopped;
  }

  #compareIn(durationMs: number): void {
    this.#cancelComparison?.();
    this.#cancelComparison = this.#options.clock.after(durationMs, () => {
      this.#cancelComparison = undefined;
      if (this.#streams.size === 0) return;
      this.#report();
      this.#compareIn(REPORT_INTERVAL_MS);
    });
  }

  #report(): void {
    const report = this.#options.report();
    const text = Buffer.from(NodeReport.encode(report).finish()).toString('base64');
    for (const stream of this.#streams.values()) stream.report(report, text);
    const [first] = this.#streams.values();
    if (this.#failedPods.size > 0) first?.send({ failedPods: [...this.#failedPods.values()] });
    this.#failedPods.clear();
  }

  /** @throws Failure of the stream's beginning */
  async #open(signal: AbortSignal): Promise<NextRun | undefined> {
    const { ipam, connect } = this.#options;
    const isFirst = this.#streams.size === 0;
    const connection = isFirst ? ipam : connect();
    const stream = new NodeStream(this.#options, connection);
    const close = (): void => {
      stream.close();
      if (!isFirst) connection.close();
    };
    // Until podwire-ipam answers, the stream waits.
    signal.addEventListener('abort', close, { once: true });
    try {
      const { instance, hasReplicas } = await stream.open();
      if (this.#streams.has(instance) || this.#isStopped) {
        close();
        this.#repeatedCount += 1;
      } else this.#add(instance, stream, close);
      this.#reportedFailure = '';
      return hasReplicas ? { inMs: this.#searchPauseMs() } : undefined;
    } catch (error) {
      close();
      // A search that fails is repeated at its own pace.
      if (isFirst) throw error;
      this.#repeatedCount += 1;
      return { inMs: this.#searchPauseMs() };
    } finally {
      signal.removeEventListener('abort', close);
    }
  }

  #add(instance: string, stream: NodeStream, close: () => void): void {
    this.#streams.set(instance, stream);
    this.#repeatedCount = 0;
    this.#compareIn(FIRST_CHANGE_MS);
    void stream.serve().finally(() => {
      close();
      this.#streams.delete(instance);
      this.#repeatedCount = 0;
      this.#queue.request('connect', BACKOFF.baseMs);
    });
  }

  #searchPauseMs(): number {
    const pauseMs = Math.min(SEARCH.baseMs * 2 ** this.#repeatedCount, SEARCH.maxMs);
    return pauseMs * (0.5 + this.#options.random());
  }
}

/** A stream to one podwire-ipam. */
class NodeStream {
  readonly #options: ClusterLinkOptions;
  readonly #ended = new AbortController();
  readonly #messages: AsyncGenerator<ConnectNodeResponse, void, void>;
  #sendMessage: (message: ConnectNodeRequest) => void = () => undefined;
  #reported: string;

  constructor(options: ClusterLinkOptions, connection: Connection) {
    this.#options = options;
    const report = options.report();
    this.#reported = Buffer.from(NodeReport.encode(report).finish()).toString('base64');
    const first = { nodeName: options.nodeName, report, answer: undefined, failedPods: [] };
    const { signal } = this.#ended;
    this.#messages = connection.stream(METHOD, first, signal, (send) => (this.#sendMessage = send));
  }

  /** Waits for the first message. @throws Failure */
  async open(): Promise<{ readonly instance: string; readonly hasReplicas: boolean }> {
    const { value } = await this.#messages.next();
    if (!value) throw new Failure('UNREACHABLE', 'podwire-ipam: the stream of the node ended at once');
    return value;
  }

  /** Executes the calls until the stream ends. Never rejects. */
  async serve(): Promise<void> {
    try {
      for await (const { call } of this.#messages) if (call) void this.#execute(call);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
    }
  }

  /** @param text - the encoded report */
  report(report: NodeReport, text: string): void {
    if (text === this.#reported) return;
    this.#reported = text;
    this.send({ report });
  }

  send(message: Partial<ConnectNodeRequest>): void {
    this.#sendMessage({ nodeName: '', report: undefined, answer: undefined, failedPods: [], ...message });
  }

  close(): void {
    this.#ended.abort(new Failure('CANCELLED', 'podwire-node is stopping'));
  }

  async #execute({ number, timeoutMs, request }: NodeCall): Promise<void> {
    const { execute, log } = this.#options;
    const answer = (part: Uint8Array, isLast: boolean, error: Uint8Array = Buffer.alloc(0)): void =>
      this.send({
        answer: { callNumber: number, part: Buffer.from(part), isLast, error: Buffer.from(error) },
      });
    try {
      if (!request) throw new Failure('INVALID_REQUEST', 'a call without a request');
      for await (const bytes of execute(request, timeoutMs))
        for (let start = 0; start < bytes.length; start += PART_BYTES)
          answer(bytes.subarray(start, start + PART_BYTES), false);
      answer(Buffer.alloc(0), true);
    } catch (error) {
      if (!(error instanceof Failure)) log.error({ err: error }, 'defect: a call through podwire-ipam failed');
      answer(Buffer.alloc(0), true, encodeFailure(error));
    }
  }
}
