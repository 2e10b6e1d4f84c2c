// METRICS.md and SPANS.md.
import { METRICS, metricOf, type MetricName } from '@podwire/shared/telemetry/metrics';
import { ATTRIBUTES, SPANS } from '@podwire/shared/telemetry/spans';

import { ALERTS, type Alert } from './alerts.js';
import { labelName, seriesName, seriesNames } from './series.js';

/** Sections of the document, by the beginning of a metric's name; the last one has the rest. */
const SECTIONS = [
  ['podwire-ipam', /^podwire\.(ipam|store)\./],
  ['podwire-node', /^podwire\.(plugin|dataplane)\./],
  ['Every process', /^/],
] as const;

const METRICS_HEAD = `# Metrics

Generated from the catalog in \`services/shared/telemetry\` by \`npm run dashboards\`. The names are those in Prometheus,
whether it scrapes the processes or receives the metrics by OTLP; a histogram has \`_bucket\`, \`_sum\` and \`_count\`. Times
are in seconds. A counter exists with 0 from the start of its process, unless the table says since when it exists.

Counters of podwire-ipam are per replica. Its gauges describe the whole datastore and are the same on every replica: use
\`max\`, not \`sum\`, over replicas. It also has four of its gauges under the names that Calico's kube-controllers use:
\`ipam_allocations_in_use\`, \`ipam_allocations_borrowed\`, \`ipam_blocks\` and \`ipam_ippool_size\`.

A process that exports spans also has the SDK's \`otel_sdk_processor_span_*\`: spans that were exported, that were lost
(label \`error_type\`), and that wait.
`;

/** A label with more values has only its first ones in the table. */
const LISTED_VALUES_COUNT = 12;
const FIRST_VALUES_COUNT = 3;

/** The content of METRICS.md. */
export function metricsDocument(): string {
  const rest = new Set(Object.keys(METRICS).filter((name): name is MetricName => name in METRICS));
  const sections = SECTIONS.map(([title, pattern]) => {
    const names = [...rest].filter((name) => pattern.test(name));
    for (const name of names) rest.delete(name);
    return `## ${title}\n\n${metricsTable(names)}`;
  });
  return [METRICS_HEAD, ...sections].join('\n');
}

function metricsTable(names: readonly MetricName[]): string {
  const row = (name: MetricName) => [
    `\`${seriesName(name)}\``,
    metricOf(name).kind,
    labels(name),
    about(name),
    alerts(name),
  ];
  return table(['Name', 'Type', 'Labels', 'Meaning', 'Alerts'], names.map(row));
}

function labels(name: MetricName): string {
  const texts = Object.entries(metricOf(name).labels ?? {}).map(
    ([label, values]) => `\`${labelName(label)}\`: ${typeof values === 'string' ? values : listed(values)}`,
  );
  return texts.join('; ');
}

function listed(values: readonly string[]): string {
  if (values.length <= LISTED_VALUES_COUNT) return values.join(', ');
  return `${values.slice(0, FIRST_VALUES_COUNT).join(', ')} and ${values.length - FIRST_VALUES_COUNT} more`;
}

function about(name: MetricName): string {
  const { about: text, when } = metricOf(name);
  return when === undefined ? text : `${text}. Exists ${when}`;
}

function alerts(name: MetricName): string {
  const series = seriesNames(name);
  const uses = ({ expression }: Alert): boolean => series.some((each) => new RegExp(`\\b${each}\\b`).test(expression));
  return ALERTS.filter(uses)
    .map((alert) => alert.name)
    .join(', ');
}

const SPANS_HEAD = `# Spans

Generated from the table in \`services/shared/telemetry/spans.ts\` by \`npm run dashboards\`. A span of a call is named after
its method, such as \`podwire.ipam.v1.AddressService/Allocate\`: CLIENT at the caller, SERVER at the service. Background
checks have no spans. A repeated call is an event \`podwire.retry\` of the command's span, with \`error.type\`.
`;

/** The content of SPANS.md. */
export function spansDocument(): string {
  const spans = Object.entries(SPANS).map(([name, { kind, about: text }]) => [`\`${name}\``, kind, text]);
  const attributes = Object.entries(ATTRIBUTES).map(([name, { type, about: text }]) => [`\`${name}\``, type, text]);
  const tables = [
    table(['Span', 'Kind', 'Meaning'], spans),
    '## Attributes\n',
    table(['Attribute', 'Type', 'Meaning'], attributes),
  ];
  return [SPANS_HEAD, ...tables].join('\n');
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => '---'), ...rows];
  return `${lines.map((cells) => `| ${cells.join(' | ')} |`).join('\n')}\n`;
}
