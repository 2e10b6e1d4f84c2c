import { metrics } from '@opentelemetry/api';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { describe, expect, test } from 'vitest';

import { ALIVE_MS, type NodeSession } from '../records/session.js';
import { address } from '../testing/allocations.js';
import { NOW_MS, nodeRecord, session } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { auditSteps, recheckFinding } from './audit.js';
import { AuditContext } from './context.js';
import { sessionState } from './session-findings.js';
import { observeSessions } from './sessions-operations.js';

const MINUTE_MS = 60_000;

const CONFLICT = {
  address: address('10.0.0.7'),
  attachment: 'net/c1/eth0 (pod default/web-0)',
  holder: 'net/c2/eth0 (pod default/web-1 on node n2)',
};

function viewOf(rest: Partial<NodeSession>, createTimeMs = NOW_MS - 60 * MINUTE_MS) {
  const value = session('n1', { reportedAtMs: NOW_MS, ...rest });
  return new TestView([nodeRecord('n1', { createTimeMs }), { kind: 'nodeSession', value }]);
}

function audit(view: TestView) {
  const context = new AuditContext(view, { nowMs: NOW_MS, graceMs: 0 });
  const findings = [...auditSteps(context)].flat();
  for (const finding of findings) expect(recheckFinding(context, finding)).toEqual(finding);
  return findings.map(({ kind, explanation }) => `${kind}: ${explanation}`);
}

describe('the audit', () => {
  test('names both pods of an address that two nodes have', () => {
    expect(audit(viewOf({ conflicts: [CONFLICT] }))).toEqual([
      'addressConflict: node n1 has 10.0.0.7 for net/c1/eth0 (pod default/web-0), and the datastore has it for net/c2/eth0 (pod default/web-1 on node n2)',
    ]);
  });

  test('names a conflict of a node that is not registered any more', () => {
    const view = viewOf({ conflicts: [CONFLICT] });
    view.remove({ kind: 'node', name: 'n1' });
    expect(audit(view)).toHaveLength(1);
  });

  test.each([
    ['reported just now', { reportedAtMs: NOW_MS - 9 * MINUTE_MS }, []],
    [
      'has not reported for 10 minutes',
      { reportedAtMs: NOW_MS - 10 * MINUTE_MS },
      ['nodeUnreported: node n1 runs, and has not since 2026-08-22T06:23:25.100Z reported what it holds'],
    ],
    [
      'has never reported',
      { reportedAtMs: undefined },
      ['nodeUnreported: node n1 runs, and has never reported what it holds'],
    ],
  ])('of a node that %s', (_, rest, findings) => {
    expect(audit(viewOf(rest))).toEqual(findings);
  });

  test('of a node that does not run has nothing', () => {
    const view = viewOf({ reportedAtMs: 0 });
    view.monotonicMs += ALIVE_MS;
    expect(audit(view)).toEqual([]);
  });

  test('gives a new node time for its first report', () => {
    expect(audit(viewOf({ reportedAtMs: undefined }, NOW_MS - MINUTE_MS))).toEqual([]);
  });
});

test('conflicts and missing reports are counted at collection, until its end', async () => {
  const shown = new ReadMetrics('podwire.ipam.');
  const view = viewOf({ conflicts: [CONFLICT], reportedAtMs: 0 });
  const stop = observeSessions(() => Promise.resolve(sessionState(view, NOW_MS)));
  expect(await shown.read()).toEqual(['nodes.conflicts node=n1 1', 'nodes.unreported 1']);
  stop();
  observeSessions(() => Promise.reject(new Error('away')));
  expect(await shown.read()).toEqual([]);
  metrics.disable();
});
