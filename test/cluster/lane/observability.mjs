// An OpenTelemetry Collector and Prometheus beside the control plane, as an operator has them, and questions to both.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { URLSearchParams } from 'node:url';

import { ROOT } from './guide.mjs';
import { CONTROL_PLANE, nodesOf } from './network.mjs';
import { until } from './wait.mjs';

const CONFIGURATION = join(ROOT, 'deploy', 'observability');
const PROMETHEUS_PORT = 9090;
const SPAN_METRICS_PORT = 8889;

/** Ports of Podwire's endpoints, by job. */
const JOBS = { 'podwire-ipam': 9094, 'podwire-node': 9091 };

export const COLLECTOR = { grpc: `${CONTROL_PLANE}:4317`, http: `http://${CONTROL_PLANE}:4318` };

/** The differences from deploy/observability/collector.yaml: span metrics are scraped, and traces go to a file. */
const collectorChanges = (traces) => ({
  // Longer than the timeout of an ADD, or its end would come too late.
  processors: { tail_sampling: { decision_wait: '20s' } },
  exporters: {
    'prometheus/cluster': {
      endpoint: `${CONTROL_PLANE}:${SPAN_METRICS_PORT}`,
      enable_open_metrics: true,
      send_timestamps: true,
    },
    'file/cluster': { path: traces, flush_interval: '1s' },
    'file/kept': { path: `${traces}.kept`, flush_interval: '1s' },
  },
  service: {
    telemetry: { metrics: { level: 'none' } },
    pipelines: {
      // Each trace, whatever the sampling keeps.
      'traces/all': { receivers: ['otlp'], processors: ['memory_limiter'], exporters: ['spanmetrics', 'file/cluster'] },
      'traces/kept': { receivers: ['otlp'], processors: ['memory_limiter', 'tail_sampling'], exporters: ['file/kept'] },
      metrics: { receivers: ['spanmetrics'], processors: ['batch'], exporters: ['prometheus/cluster'] },
    },
  },
});

const scrape = (job, port, settings = {}) => ({
  job_name: job,
  static_configs: nodesOf(false).map(({ name, ipv4 }) => ({ targets: [`${ipv4}:${port}`], labels: { node: name } })),
  ...settings,
});

const PROMETHEUS = {
  global: { scrape_interval: '2s', evaluation_interval: '2s' },
  rule_files: [join(CONFIGURATION, 'rules.yaml')],
  scrape_configs: [
    ...Object.entries(JOBS).map(([job, port]) => scrape(job, port)),
    scrape('kubelet', 10250, { scheme: 'https', tls_config: { insecure_skip_verify: true } }),
    { job_name: 'collector', static_configs: [{ targets: [`${CONTROL_PLANE}:${SPAN_METRICS_PORT}`] }] },
  ],
};

export class Observability {
  #folder;
  #collector;

  constructor({ folder, programs }) {
    this.#folder = join(folder, 'observability');
    this.#collector = join(programs.collector, 'otelcol');
    mkdirSync(join(this.#folder, 'logs'), { recursive: true });
    this.traces = join(this.#folder, 'traces.json');
  }

  #spawn(program, args) {
    const log = openSync(join(this.#folder, 'logs', `${program.split('/').at(-1)}.log`), 'a');
    spawn(program, args, { stdio: ['ignore', log, log], cwd: this.#folder });
  }

  /** Starts both. Kubelets and containerd send their spans from then on. */
  async start() {
    const file = (name, value) => {
      writeFileSync(join(this.#folder, name), JSON.stringify(value));
      return join(this.#folder, name);
    };
    const changes = file('collector.json', collectorChanges(this.traces));
    this.#spawn(this.#collector, ['--config', join(CONFIGURATION, 'collector.yaml'), '--config', changes]);
    this.#spawn('prometheus', [
      `--config.file=${file('prometheus.json', PROMETHEUS)}`,
      `--storage.tsdb.path=${join(this.#folder, 'prometheus')}`,
      `--web.listen-address=127.0.0.1:${PROMETHEUS_PORT}`,
      '--enable-feature=exemplar-storage',
    ]);
    await until('Prometheus', async () => (await this.#get('/-/ready')).ok, 30);
  }

  /** Keeps a text beside the logs of the run. */
  keep(name, text) {
    writeFileSync(join(this.#folder, 'logs', name), text);
  }

  #get(path, parameters = {}) {
    return globalThis.fetch(`http://127.0.0.1:${PROMETHEUS_PORT}${path}?${new URLSearchParams(parameters)}`);
  }

  /** @returns the series of an instant query: their labels, and their values as numbers. @throws Error of Prometheus */
  async query(expression) {
    const { data, error } = await (await this.#get('/api/v1/query', { query: expression })).json();
    if (error) throw new Error(`${expression}: ${error}`);
    const series = data.resultType === 'scalar' ? [{ metric: {}, value: data.result }] : data.result;
    return series.map(({ metric, value: [, text] }) => ({ labels: metric, value: Number(text) }));
  }

  /** @returns the traces that lead from a histogram's series to an example */
  async exemplarTraces(series) {
    const range = { start: String(Date.now() / 1000 - 600), end: String(Date.now() / 1000) };
    const { data } = await (await this.#get('/api/v1/query_exemplars', { query: series, ...range })).json();
    return data.flatMap(({ exemplars }) => exemplars.map(({ labels }) => labels.trace_id));
  }

  /** @returns the endpoints that Prometheus cannot scrape, with the reason */
  async unreachableTargets() {
    const { data } = await (await this.#get('/api/v1/targets', { state: 'active' })).json();
    return data.activeTargets
      .filter(({ health }) => health !== 'up')
      .map(({ scrapeUrl, lastError }) => `${scrapeUrl}: ${lastError}`);
  }

  /** @returns the names of firing alerts */
  async firingAlerts() {
    const { data } = await (await this.#get('/api/v1/alerts')).json();
    return data.alerts.filter(({ state }) => state === 'firing').map(({ labels }) => labels.alertname);
  }

  /** @returns all spans that arrived, or the spans that the sampling kept, each with the name of its service */
  spans(file = this.traces) {
    if (!existsSync(file)) return [];
    const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1);
    return lines.flatMap((line) =>
      JSON.parse(line).resourceSpans.flatMap(({ resource, scopeSpans }) => {
        const service = resource.attributes.find(({ key }) => key === 'service.name')?.value.stringValue;
        return scopeSpans.flatMap(({ spans }) => spans.map((span) => ({ service, ...span })));
      }),
    );
  }
}
