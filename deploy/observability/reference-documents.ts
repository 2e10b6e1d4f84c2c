// METRICS.md and SPANS.md.
import { METRICS, metricOf, type MetricName } from '@podwire/shared/telemetry/metrics';
import { ATTRIBUTES, SPANS } from '@podwire/shared/telemetry/spans';

import { ALERTS, type Alert } from './alerts.js';
import { labelName, seriesName, seriesNames } from './series.js';

/** Sections of the document, by the beginning of a metric's name; the last one has the rest. */
const SECTIONS = [
  ['podwire-ipam', /^podwire\.(ipam|store)\./],
  ['podwire-node', /^podwire\.(plugin|dataplane|leases|inventory)\./],
  ['Every process', /^/],
] as const;

const METRICS_HEAD = `# Metrics

Generated from the catalog in \`services/shared/telemetry\` by \`npm run dashboards\`. Prometheus has these names, by
scraping and by OTLP. A name with \`_total\` is a counter. The other names are gauges, or histograms with \`_bucket\`,
\`_sum\` and \`_count\`. Times are in seconds. A counter begins with 0 at the start of its process, unless the table says
since when it exists.

Counters of podwire-ipam are per replica. Its gauges describe the whole datastore: use \`max\`, not \`sum\`, over
replicas. Four gauges also have the names of Calico's kube-controllers: \`ipam_allocations_in_use\`,
\`ipam_allocations_borrowed\`, \`ipam_blocks\`, \`ipam_ippool_size\`. A process that exports spans also has the SDK's
\`otel_sdk_processor_span_*\`: exported, lost (label \`error_type\`) and waiting spans.
`;

/** A label with more values has only its first ones in the table. */
const LISTED_VALUES_COUNT = 12;
const FIRST_VALUES_COUNT = 3;

const NAMES = Object.keys(METRICS).filter((name): name is MetricName => name in METRICS);

/** The content of METRICS.md. */
export function metricsDocument(): string {
  const rest = new Set(NAMES);
  const sections = SECTIONS.map(([title, pattern]) => {
    const names = [...rest].filter((name) => pattern.test(name));
    for (const name of names) rest.delete(name);
    return `## ${title}\n\n${metricsTable(names)}`;
  });
  return [METRICS_HEAD, sharedLabelsList(), ...sections].join('\n');
}

function metricsTable(names: readonly MetricName[]): string {
  const row = (name: MetricName) => [`\`${seriesName(name)}\``, labels(name), about(name)];
  return table(['Name', 'Labels', 'Meaning'], names.map(row));
}

/** A label of so many metrics has its values above the tables. */
const SHARED_COUNT = 2;

const SHARED_LABELS = new Set(
  NAMES.flatMap(labelTexts).filter((text, _, all) => all.filter((each) => each === text).length >= SHARED_COUNT),
);

function sharedLabelsList(): string {
  const items = [...SHARED_LABELS].sort().map((text) => `- ${text}`);
  return `Labels of several metrics, unless a row says otherwise:\n\n${items.join('\n')}\n`;
}

/** Labels with their values: `family: ipv4, ipv6`. */
function labelTexts(name: MetricName): string[] {
  return Object.entries(metricOf(name).labels ?? {}).map(
    ([label, values]) => `\`${labelName(label)}\`: ${typeof values === 'string' ? values : listed(values)}`,
  );
}

function labels(name: MetricName): string {
  const texts = labelTexts(name).map((text) => (SHARED_LABELS.has(text) ? text.replace(/:.*/, '') : text));
  return texts.join('; ');
}

function listed(values: readonly string[]): string {
  if (values.length <= LISTED_VALUES_COUNT) return values.join(', ');
  return `${values.slice(0, FIRST_VALUES_COUNT).join(', ')} and ${values.length - FIRST_VALUES_COUNT} more`;
}

function about(name: MetricName): string {
  const { about: text, kind, when } = metricOf(name);
  const uses = alerts(name);
  return [
    ...(kind === 'histogram' ? ['Histogram'] : []),
    text,
    ...(when === undefined ? [] : [`Exists ${when}`]),
    ...(uses === '' ? [] : [`Alerts: ${uses}`]),
  ].join('. ');
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
