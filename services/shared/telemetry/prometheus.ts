import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';

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
import { temporalityOf } from './exporters.js';

const PATH = '/metrics';

/** Pause before another attempt to listen, in milliseconds. In an update, the predecessor has the port for some seconds. */
const RETRY_MS = 1000;

/** Suffixes of metric names by unit (OpenTelemetry, "Prometheus and OpenMetrics Compatibility"). Annotations in braces have none. */
const UNIT_SUFFIXES: Readonly<Record<string, string>> = { s: '_seconds', ms: '_milliseconds', By: '_bytes' };

export interface PrometheusOptions {
  readonly host: string;
  /** 0 for any free port. */
  readonly port: number;
  /** Second names of metrics: the OpenTelemetry name, and the name that dashboards of other software use. */
  readonly aliases: Readonly<Record<string, string>>;
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
 * Endpoint for Prometheus, without authentication: `GET /metrics`. A port in use stops no process: it is logged, and the
 * endpoint listens once the port is free.
 *
 * Metrics have the names that Prometheus gives to those that arrive by OTLP: the SDK's serializer omits units.
 */
export class PrometheusEndpoint {
  readonly reader: MetricReader = new ScrapeReader();
  readonly #options: PrometheusOptions;
  readonly #serializer = new PrometheusSerializer('', false, undefined, false, true);
  readonly #server: Server;
  #cancelRetry = (): void => undefined;

  constructor(options: PrometheusOptions) {
    this.#options = options;
    this.#server = createServer((request, response) => void this.#answer(request, response));
    // A scraper's open connection must not delay the end of the process.
    this.#server.keepAliveTimeout = 1;
    this.#server.unref();
  }

  /** Resolves after the first attempt to listen; further ones follow in the background. */
  start(): Promise<void> {
    return this.#listen(false);
  }

  /** The port that it listens on; undefined while it does not. */
  get port(): number | undefined {
    const address = this.#server.address();
    return typeof address === 'object' && address ? address.port : undefined;
  }

  async stop(): Promise<void> {
    this.#cancelRetry();
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

  async #answer({ method, url }: IncomingMessage, response: ServerResponse): Promise<void> {
    if (method !== 'GET' || url?.split('?')[0] !== PATH) {
      response.writeHead(404, { 'content-type': 'text/plain' }).end(`not found; GET ${PATH}\n`);
      return;
    }
    const { resourceMetrics, errors } = await this.reader.collect();
    for (const error of errors) this.#options.log.debug({ err: error }, 'a metric could not be collected');
    const text = this.#serializer.serialize(withPrometheusNames(resourceMetrics, this.#options.aliases));
    response.writeHead(200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' });
    // The format demands a line feed at the end, which the serializer omits.
    response.end(`${text}\n`);
  }
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
