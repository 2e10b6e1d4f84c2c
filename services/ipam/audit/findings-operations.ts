import { observeMetrics, type Observe } from '@podwire/shared/telemetry/instruments';

import { severityOf, type Finding } from './finding.js';

const GAUGES = ['podwire.ipam.audit.findings', 'podwire.ipam.audit.finding'] as const;

/** Findings that are named; the rest is only counted, as a series each would be too many. */
const NAMED_COUNT = 20;
const NAMES_MAX_LENGTH = 200;

const SEVERITIES = ['error', 'warning'] as const;

/**
 * Gauges of what the last audit found, except allowed states.
 * @param latest - undefined before the first audit
 * @returns a function that removes the gauges
 */
export function observeFindings(latest: () => readonly Finding[] | undefined): () => void {
  return observeMetrics(GAUGES, (observe) => {
    const findings = latest();
    if (findings) report(findings, observe);
  });
}

function report(findings: readonly Finding[], observe: Observe<(typeof GAUGES)[number]>): void {
  const faults = findings.filter((finding) => severityOf(finding) !== 'information');
  for (const severity of SEVERITIES) {
    const counts = new Map<string, number>();
    for (const finding of faults) {
      if (severityOf(finding) === severity) counts.set(finding.kind, (counts.get(finding.kind) ?? 0) + 1);
    }
    if (counts.size === 0) counts.set('', 0);
    for (const [kind, count] of counts) observe('podwire.ipam.audit.findings', count, { kind, severity });
  }
  for (const { kind, objects } of faults.slice(0, NAMED_COUNT)) {
    const names = objects.map(({ type, name }) => `${type} ${name}`).join(', ');
    observe('podwire.ipam.audit.finding', 1, { kind, object: names.slice(0, NAMES_MAX_LENGTH) });
  }
}
