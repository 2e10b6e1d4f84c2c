import { createHash, randomUUID, timingSafeEqual } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import {
  createServer,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  type Server,
  type ServerResponse,
} from 'node:http';

import { PrometheusSerializer } from '@opentelemetry/exporter-prometheus';
import {
  AggregationTemporality,
  MetricReader,
  type MetricData,
  type ResourceMetrics,
} from '@opentelemetry/sdk-metrics';

import { codeOf, messageOf } from '../failure/thrown.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { SourceCounts } from '../sockets/source-counts.js';
import { temporalityOf } from './exporters.js';

const PATH = '/metrics';

/** Pause before another attempt to listen, in milliseconds. In an update, the predecessor has the port for some seconds. */
const RETRY_MS = 1000;

/** Shortest time between two pages, in milliseconds: the cost of a page is taken from the ADDs of the process. */
const PAGE_INTERVAL_MS = 1000;

/** Open connections, each with one request. A scraper has one; some clusters have several scrapers. */
const MAX_CONNECTIONS = 32;
const MAX_CONNECTIONS_PER_SOURCE = 4;

/** Time for a request to arrive, and for a connection without traffic, in milliseconds. */
const REQUEST_TIMEOUT_MS = 5000;

/** Suffixes of metric names by unit (OpenTelemetry, "Prometheus and OpenMetrics Compatibility"). Annotations in braces have none. */
const UNIT_SUFFIXES: Readonly<Record<string, string>> = { s: '_seconds', ms: '_milliseconds', By: '_bytes' };

export interface PrometheusOptions {
  readonly host: string;
  /** 0 for any free port. */
  readonly port: number;
  /** Second names of metrics: the OpenTelemetry name, and the name that dashboards of other software use. */
  readonly aliases: Readonly<Record<string, string>>;
  /** File with the token that a scraper has to show (`authorization` of Prometheus); empty or undefined for none. Read for each page. */
  readonly tokenFile?: string;
  readonly log: Logger;
  readonly clock: Clock;
}

/** Collects when it is scraped. */
class ScrapeReader extends MetricReader {
  constructor() {
    super({ aggregationTemporalitySelector: (type) => temporalityOf(type, AggregationTemporality.CUMULATIVE) });
  }

  protected override onForceFlush(): Promise<void> {
    return Promise.resolve();
  }

  protected override onShutdown(): Promise<void> {
    return Promise.resolve();
  }
}

/**
 * Endpoint for Prometheus: `GET /metrics`, with a bearer token if there is one. A port in use stops no process: it is logged, and
 * the endpoint listens once the port is free.
 *
 * Scrapes take time of the process that serves ADDs. So all requests of a second share one page, a request waits for it, and
 * a connection has one request: no client gets answers faster than pages are made.
 *
 * Metrics have the names that Prometheus gives to OTLP metrics: the SDK's serializer omits units.
 */
export class PrometheusEndpoint {
  readonly reader: MetricReader = new ScrapeReader();
  readonly #options: PrometheusOptions;
  readonly #serializer = new PrometheusSerializer('', false, undefined, false, true);
  readonly #server: Server;
  readonly #connections = new SourceCounts({ max: MAX_CONNECTIONS, maxPerSource: MAX_CONNECTIONS_PER_SOURCE });
  readonly #stopped = new AbortController();
  /** The page that requests wait for, and when the last one was begun. */
  #page: Promise<Page> | undefined;
  #pageBegunMs = -Infinity;
  #cancelRetry = (): void => undefined;

  constructor(options: PrometheusOptions) {
    this.#options = options;
    const limits = { requestTimeout: REQUEST_TIMEOUT_MS, connectionsCheckingInterval: 1000, maxHeaderSize: 8192 };
    this.#server = createServer(limits, (request, response) => void this.#answer(request, response));
    this.#server.maxRequestsPerSocket = 1;
    this.#server.on('connection', (socket) => {
      if (!this.#connections.admit(socket)) socket.destroy();
    });
    this.#server.on('dropRequest', ({ socket }) => socket.destroy());
    this.#server.setTimeout(REQUEST_TIMEOUT_MS);
    // A scraper's open connection must not delay the end of the process.
    this.#server.unref();
  }

  /** Resolves after the first attempt to listen; further ones follow in the background. */
  start(): Promise<void> {
    return this.#listen(false);
  }

  /** All metrics now, in Prometheus' text format. */
  async text(): Promise<string> {
    const { log, aliases } = this.#options;
    const { resourceMetrics, errors } = await this.reader.collect();
    for (const error of errors) log.debug({ err: error }, 'a metric could not be collected');
    // The format demands a line feed at the end, which the serializer omits.
    return `${this.#serializer.serialize(withPrometheusNames(resourceMetrics, aliases))}\n`;
  }

  /** The port that it listens on; undefined while it does not. */
  get port(): number | undefined {
    const address = this.#server.address();
    return typeof address === 'object' && address ? address.port : undefined;
  }

  async stop(): Promise<void> {
    this.#cancelRetry();
    this.#stopped.abort();
    this.#server.closeAllConnections();
    if (this.#server.listening) await new Promise((resolve) => this.#server.close(resolve));
  }

  #listen(isReported: boolean): Promise<void> {
    const { host, port, log, clock } = this.#options;
    const server = this.#server;
    return new Promise((resolve) => {
      const failed = (error: Error): void => {
        server.off('listening', listening);
        if (!isReported) log.warn(`${unavailableText(host, port, error)}; trying again until it is free`);
        this.#cancelRetry = clock.after(RETRY_MS, () => void this.#listen(true));
        resolve();
      };
      const listening = (): void => {
        server.off('error', failed);
        log.info(`metrics: http://${host.includes(':') ? `[${host}]` : host}:${this.port}${PATH}`);
        resolve();
      };
      server.once('error', failed).once('listening', listening).listen(port, host);
    });
  }

  /** Every answer takes the time of a page, so that a client without one to ask for is no faster. */
  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.shouldKeepAlive = false;
    const answer = (code: number, text: string | Buffer, headers: OutgoingHttpHeaders = {}): void =>
      void response.writeHead(code, { 'content-type': 'text/plain', ...headers }).end(text);
    try {
      const { text, token } = await (this.#page ??= this.#nextPage());
      if (request.method !== 'GET' || request.url?.split('?')[0] !== PATH) answer(404, `not found; GET ${PATH}\n`);
      else if (token !== undefined && !timingSafeEqual(token, digestOf(request.headers.authorization)))
        answer(401, 'unauthorized\n', { 'www-authenticate': 'Bearer' });
      else answer(200, text, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' });
    } catch (error) {
      answer(500, `metrics cannot be collected: ${messageOf(error)}\n`);
    }
  }

  /** The page for the requests that arrive until it is begun. */
  async #nextPage(): Promise<Page> {
    const { clock } = this.#options;
    const waitMs = this.#pageBegunMs + PAGE_INTERVAL_MS - clock.monotonicMs();
    await (waitMs > 0 ? clock.sleep(waitMs, this.#stopped.signal) : undefined);
    this.#page = undefined;
    this.#pageBegunMs = clock.monotonicMs();
    const [text, token] = await Promise.all([this.text(), this.#readToken()]);
    return { text: Buffer.from(text), token };
  }

  /** @returns undefined without a token; while its file cannot be read, a token that no request has */
  async #readToken(): Promise<Buffer | undefined> {
    const { tokenFile = '', log } = this.#options;
    if (tokenFile === '') return undefined;
    const token = await readFile(tokenFile, 'utf8').catch((error: unknown) => {
      log.warn({ err: error }, `metrics: no scrape is answered, as the token in ${tokenFile} cannot be read`);
      return '';
    });
    return token.trim() === '' ? digestOf(randomUUID()) : digestOf(`Bearer ${token.trim()}`);
  }
}

/** A page, and the digest of the header that a request for it must have. */
interface Page {
  readonly text: Buffer;
  readonly token: Buffer | undefined;
}

/** Digest of equal length for any text, as the comparison needs. */
function digestOf(text = ''): Buffer {
  return createHash('sha256').update(text).digest();
}

function unavailableText(host: string, port: number, error: Error): string {
  const reason = codeOf(error) === 'EADDRINUSE' ? 'another process uses the port' : messageOf(error);
  return `metrics: cannot listen on ${host}:${port}: ${reason}; set OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT, or OTEL_METRICS_EXPORTER=none`;
}

/** Appends the suffix of its unit to each name, and adds metrics under their second names. */
function withPrometheusNames(resourceMetrics: ResourceMetrics, aliases: PrometheusOptions['aliases']): ResourceMetrics {
  const scopeMetrics = resourceMetrics.scopeMetrics.map(({ scope, metrics }) => ({
    scope,
    metrics: metrics.flatMap((metric): MetricData[] => {
      const { name, unit } = metric.descriptor;
      const alias = aliases[name];
      return [
        renamed(metric, `${name}${UNIT_SUFFIXES[unit] ?? ''}`),
        ...(alias === undefined ? [] : [renamed(metric, alias)]),
      ];
    }),
  }));
  return { resource: resourceMetrics.resource, scopeMetrics };
}

function renamed<Data extends MetricData>(metric: Data, name: string): Data {
  return { ...metric, descriptor: { ...metric.descriptor, name, unit: '' } };
}
