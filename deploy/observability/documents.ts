import { DASHBOARDS, grafanaDashboard } from './dashboards.js';
import { metricsDocument, spansDocument } from './reference-documents.js';
import { rulesFile, runbook } from './rules.js';

/** The generated files of this folder, by their paths. */
export function generatedFiles(): Readonly<Record<string, string>> {
  const dashboards = DASHBOARDS.map((definition): [string, string] => [
    `dashboards/${definition.uid}.json`,
    `${JSON.stringify(grafanaDashboard(definition), undefined, 2)}\n`,
  ]);
  return {
    'METRICS.md': metricsDocument(),
    'RUNBOOK.md': runbook(),
    'SPANS.md': spansDocument(),
    'rules.yaml': rulesFile(),
    ...Object.fromEntries(dashboards),
  };
}
