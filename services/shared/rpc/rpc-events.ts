import { counter, histogram } from '../telemetry/instruments.js';

import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import type { NetworkCaller } from '../tls/caller.js';
import type { QueueEvents, RefusalReason } from './request-queue.js';

const MS_PER_SECOND = 1000;

/** Interval between two log lines about one caller, in milliseconds. */
const LOG_INTERVAL_MS = 60_000;

/** Callers whose last log line is remembered. A cluster has as many nodes, and an authority may sign any name. */
const MAX_LOGGED_CALLERS = 10_000;

const REASONS: Readonly<Record<RefusalReason, string>> = {
  connections: 'it has too many connections, or opens them too fast, and further ones are closed',
  calls: 'it starts calls too fast, and its connections are closed',
  identity: 'it shows no valid certificate or token, and its calls are refused',
  requests: 'it has too many open calls, and further ones are refused',
  streams: 'it has too many open streams, and further ones are refused',
  deadline: 'requests of it waited for their turn until their deadline',
};

/** @returns the instruments; created for the first call over the network, as most servers have no network listener */
function createInstruments() {
  return {
    wait: histogram('podwire.rpc.wait.duration'),
    refused: counter('podwire.rpc.requests.refused'),
  };
}

/**
 * Reports the queue of requests over the network. The metrics have the caller's role, as names would be as many as the
 * cluster has nodes; the log has the name.
 */
export class RpcEvents implements QueueEvents {
  readonly #log: Logger;
  readonly #clock: Clock;
  #created: ReturnType<typeof createInstruments> | undefined;
  /** When each caller was logged last, in the order of these times. */
  readonly #loggedAtMs = new Map<string, number>();

  constructor({ log, clock }: { readonly log: Logger; readonly clock: Clock }) {
    this.#log = log;
    this.#clock = clock;
  }

  get #instruments() {
    return (this.#created ??= createInstruments());
  }

  started({ role }: NetworkCaller, waitedMs: number): void {
    this.#instruments.wait.record(waitedMs / MS_PER_SECOND, { role });
  }

  refused(name: string, role: NetworkCaller['role'] | 'none', reason: RefusalReason): void {
    this.#instruments.refused.add(1, { role, reason });
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - (this.#loggedAtMs.get(name) ?? -Infinity) < LOG_INTERVAL_MS) return;
    this.#loggedAtMs.delete(name);
    this.#loggedAtMs.set(name, nowMs);
    const [oldest] = this.#loggedAtMs.keys();
    if (this.#loggedAtMs.size > MAX_LOGGED_CALLERS && oldest !== undefined) this.#loggedAtMs.delete(oldest);
    this.#log.warn({ 'podwire.caller': name, reason }, `${name}: ${REASONS[reason]}; check its processes`);
  }
}
