import { parser as traceqlParser } from '@grafana/lezer-traceql';
import { parser as promqlParser } from '@prometheus-io/lezer-promql';
import { METRICS, metricOf, type MetricName } from '@podwire/shared/telemetry/metrics';
import { describe, expect, test } from 'vitest';

import { ALERTS } from './alerts.js';
import { panelQueries } from './dashboards.js';
import { labelName, seriesNames } from './series.js';

/** Labels that Prometheus and the SDK add to every series. */
const TARGET_LABELS = ['job', 'instance', 'le'];

/** Series of other programs, with the labels that queries use. */
const FOREIGN: Readonly<Record<string, readonly string[]>> = {
  kubelet_run_podsandbox_duration_seconds_sum: [],
  otel_sdk_processor_span_processed_total: ['error_type'],
  podwire_span_duration_seconds_bucket: ['span_name'],
};

const own = Object.keys(METRICS).filter((name): name is MetricName => name in METRICS);

/** The labels of each series, by its name. */
const SERIES = new Map([
  ...Object.entries(FOREIGN),
  ...own.flatMap((name) =>
    seriesNames(name).map((series) => [series, Object.keys(metricOf(name).labels ?? {}).map(labelName)] as const),
  ),
]);

interface Node {
  readonly name: string;
  readonly from: number;
  readonly to: number;
  readonly isError: boolean;
}

function nodesOf(language: 'promql' | 'traceql', text: string): Node[] {
  const nodes: Node[] = [];
  const parser = language === 'promql' ? promqlParser : traceqlParser;
  parser.parse(text).iterate({
    enter: ({ name, from, to, type }) => void nodes.push({ name, from, to, isError: type.isError }),
  });
  return nodes;
}

/** @returns the fault of a query */
function faultsOf(language: 'promql' | 'traceql', text: string): string[] {
  const nodes = nodesOf(language, text);
  const at = ({ from, to }: Node): string => text.slice(from, to);
  const errors = nodes.filter(({ isError }) => isError).map(({ from }) => `syntax error at ${from}`);
  if (language === 'traceql') return errors;
  const metrics = nodes.filter(({ name }) => name === 'Identifier').map(at);
  const labels = nodes.filter(({ name }) => name === 'LabelName').map(at);
  const known = new Set([...TARGET_LABELS, ...metrics.flatMap((metric) => SERIES.get(metric) ?? [])]);
  return [
    ...errors,
    ...(metrics.length === 0 ? ['no metric'] : []),
    ...metrics.filter((metric) => !SERIES.has(metric)).map((metric) => `unknown metric ${metric}`),
    ...labels.filter((label) => !known.has(label)).map((label) => `unknown label ${label}`),
  ];
}

const queries = panelQueries('5m').map(
  ({ dashboard, panel, language, expression }) => [`${dashboard}: ${panel}`, language, expression] as const,
);
const alerts = ALERTS.map(({ name, expression }) => [name, 'promql', expression] as const);

test.each([...queries, ...alerts])('the query of %s parses, and names what exists', (_, language, expression) => {
  expect(faultsOf(language, expression), expression).toEqual([]);
});

describe('a query is refused', () => {
  test.each([
    ['that does not parse', 'sum(podwire_ready', 'syntax error at 17'],
    ['of a metric that does not exist', 'podwire_redy', 'unknown metric podwire_redy'],
    [
      'of a histogram without its part',
      'podwire_store_duration_seconds',
      'unknown metric podwire_store_duration_seconds',
    ],
    ['of a label that does not exist', 'sum by (pod) (podwire_ready)', 'unknown label pod'],
    ['that matches such a label', 'podwire_ready{pod="a"}', 'unknown label pod'],
  ])('%s', (_, expression, fault) => {
    expect(faultsOf('promql', expression)).toContain(fault);
  });

  test('of TraceQL that does not parse', () => {
    expect(faultsOf('traceql', '{ name = ')).not.toEqual([]);
  });
});
