import { stringify } from 'yaml';

import { ALERTS, type Alert } from './alerts.js';
import { conditionsSection } from './reference-documents.js';

const HEAD = '# Generated from alerts.ts by "npm run dashboards".\n';

/** The alert rules as Prometheus reads them. */
export function rulesFile(): string {
  const rules = ALERTS.map(({ name, severity, for: duration, expression, summary, meaning, action }) => ({
    alert: name,
    expr: expression,
    for: duration,
    labels: { severity },
    annotations: { summary, description: `${meaning} ${action}` },
  }));
  return HEAD + stringify({ groups: [{ name: 'podwire', rules }] }, { lineWidth: 0 });
}

/** Minutes of an example. */
const EXAMPLE_MINUTES = 90;

/**
 * A test of each alert for `promtool test rules`: it fires in its first example, and never in the second.
 * @param rules - path of the rules
 */
export function ruleTests(rules: string, alerts: readonly Alert[] = ALERTS): string {
  const tests = alerts.flatMap((alert) => [ruleTest(alert, 'fires'), ruleTest(alert, 'silent')]);
  return stringify({ rule_files: [rules], evaluation_interval: '1m', tests }, { lineWidth: 0 });
}

function ruleTest({ name, example }: Alert, outcome: 'fires' | 'silent'): object {
  const firing = `ALERTS{alertname="${name}",alertstate="firing"}`;
  return {
    name: `${name} ${outcome}`,
    interval: '1m',
    input_series: example[outcome],
    promql_expr_test: [
      {
        expr: `count_over_time(count(${firing})[${EXAMPLE_MINUTES}m:1m]) > bool 0`,
        eval_time: `${EXAMPLE_MINUTES}m`,
        exp_samples: outcome === 'fires' ? [{ labels: '{}', value: 1 }] : [],
      },
    ],
  };
}

/** RUNBOOK.md: meaning and remedy of each alert and each condition of a node. */
export function runbook(): string {
  const sections = ALERTS.map(
    ({ name, severity, for: duration, expression, meaning, action }) =>
      `## ${name}\n\n${severity}, after ${duration}: \`${expression}\`\n\n${meaning}\n\n${action}\n`,
  );
  const head =
    '# Runbook\n\nGenerated from `alerts.ts` by `npm run dashboards`: the meaning and remedy of each alert. ' +
    'The last section has the [conditions](#conditions) of nodes.\n';
  return [head, ...sections, conditionsSection()].join('\n');
}
