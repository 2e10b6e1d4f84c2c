import { metrics } from '@opentelemetry/api';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { makeFinding, type Finding, type FindingKind } from './finding.js';
import { observeFindings } from './findings-operations.js';

function finding(kind: FindingKind, name: string): Finding {
  return makeFinding({
    kind,
    subject: { type: 'node', name },
    objects: [{ type: 'node', name }],
    explanation: `${name} is faulty`,
    remedy: { type: 'none', reason: 'of a test' },
  });
}

let shown: ReadMetrics;

beforeEach(() => {
  shown = new ReadMetrics('podwire.ipam.audit.');
});

afterEach(() => metrics.disable());

test('nothing is reported before the first audit, and 0 for a severity without findings', async () => {
  const latest: { findings?: readonly Finding[] } = {};
  observeFindings(() => latest.findings);
  expect(await shown.read()).toEqual([]);
  latest.findings = [];
  expect(await shown.read()).toEqual(['findings kind= severity=error 0', 'findings kind= severity=warning 0']);
});

test('findings are counted by kind, and named, except allowed states', async () => {
  const all = [finding('allocationUnused', 'a'), finding('allocationUnused', 'b'), finding('coolDownOver', 'c')];
  observeFindings(() => all);
  expect(await shown.read()).toEqual([
    'finding kind=allocationUnused object=node a 1',
    'finding kind=allocationUnused object=node b 1',
    'findings kind= severity=error 0',
    'findings kind=allocationUnused severity=warning 2',
  ]);
});

test('at most 20 findings are named, with names of at most 200 characters', async () => {
  const all = Array.from({ length: 30 }, (_, index) => finding('poolsOverlap', `n${index}${'x'.repeat(1000)}`));
  observeFindings(() => all);
  const lines = await shown.read();
  expect(lines).toContain('findings kind=poolsOverlap severity=error 30');
  const named = lines.filter((line) => line.startsWith('finding '));
  expect(named).toHaveLength(20);
  expect(named[0]).toMatch(/object=node n\dx{193} 1$/);
});
