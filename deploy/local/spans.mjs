// Takes spans as OTLP over HTTP in JSON (opentelemetry.io, "OTLP Specification"), and hands them out by trace.
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

/** Time for the last span of a trace to arrive, in milliseconds. */
const ARRIVAL_TIMEOUT_MS = 30_000;
const POLL_MS = 50;

export class SpanReceiver {
  #spans = new Map();
  #server = createServer((request, response) => {
    let body = '';
    request.setEncoding('utf8').on('data', (chunk) => (body += chunk));
    request.on('end', () => {
      this.#take(JSON.parse(body));
      response.setHeader('content-type', 'application/json').end('{}');
    });
  });

  /** @returns the URL for OTEL_EXPORTER_OTLP_ENDPOINT */
  listen() {
    return new Promise((resolve) => {
      this.#server.listen(0, '127.0.0.1', () => resolve(`http://127.0.0.1:${this.#server.address().port}`));
    });
  }

  close() {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  /**
   * The spans of a trace, once it has as many of each name as are expected: {name, durationMs}. A process sends its spans in the
   * order in which they ended, so the last one of each process is enough to wait for.
   * @throws Error when they do not arrive in time
   */
  async traceOf(traceId, expected) {
    const deadlineMs = Date.now() + ARRIVAL_TIMEOUT_MS;
    for (;;) {
      const spans = this.#spans.get(traceId) ?? [];
      const count = (name) => spans.filter((span) => span.name === name).length;
      const missing = Object.entries(expected).filter(([name, wanted]) => count(name) < wanted);
      if (missing.length === 0) return spans;
      if (Date.now() > deadlineMs) {
        throw new Error(`no span ${missing[0][0]} arrived within ${ARRIVAL_TIMEOUT_MS} ms; see the processes' logs`);
      }
      await sleep(POLL_MS);
    }
  }

  #take({ resourceSpans = [] }) {
    const all = resourceSpans.flatMap(({ scopeSpans = [] }) => scopeSpans.flatMap(({ spans = [] }) => spans));
    for (const { name, traceId, links = [], startTimeUnixNano, endTimeUnixNano } of all) {
      const span = { name, durationMs: Number(BigInt(endTimeUnixNano) - BigInt(startTimeUnixNano)) / 1e6 };
      // A commit of several requests is one span in the first one's trace, linked to the remaining traces.
      for (const id of new Set([traceId, ...links.map((link) => link.traceId)])) {
        this.#spans.set(id, [...(this.#spans.get(id) ?? []), span]);
      }
    }
  }
}
