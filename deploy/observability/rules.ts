import { stringify } from 'yaml';

import { ALERTS } from './alerts.js';
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

/** RUNBOOK.md: meaning and remedy of each alert and each condition of a node. */
export function runbook(): string {
  const sections = ALERTS.map(
    ({ name, severity, for: duration, meaning, action }) =>
      `## ${name}\n\n${severity}, after ${duration}. ${meaning}\n\n${action}\n`,
  );
  const head =
    '# Runbook\n\nGenerated from `alerts.ts` by `npm run dashboards`: meaning and remedy of each alert, whose expression is in ' +
    '[`rules.yaml`](rules.yaml), and the [conditions](#conditions) of nodes.\n';
  return [head, ...sections, conditionsSection()].join('\n');
}
