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

function viewOf(rest: Partial<NodeSession>) {
  const value = session('n1', { reportedAtMs: NOW_MS, ...rest });
  return new TestView([nodeRecord('n1'), { kind: 'nodeSession', value }]);
}

/** A node that calls for some time without a report. */
function unreportedFor(minutes: number, rest: Partial<NodeSession> = {}) {
  const view = viewOf(rest);
  for (let minute = 1; minute <= minutes; minute++) {
    view.monotonicMs += MINUTE_MS;
    const value = { ...view.session('n1')!, revision: 1 + minute };
    view.put({ kind: 'nodeSession', value });
  }
  return view;
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
    ['reported 9 minutes ago', unreportedFor(9), []],
    ['is new', unreportedFor(9, { reportedAtMs: undefined }), []],
    [
      'has not reported for 10 minutes',
      unreportedFor(10),
      ['nodeUnreported: node n1 runs, and has not since 2026-08-22T06:33:25.100Z reported what it holds'],
    ],
    [
      'has never reported',
      unreportedFor(10, { reportedAtMs: undefined }),
      ['nodeUnreported: node n1 runs, and has never reported what it holds'],
    ],
    // This time is of another replica's clock.
    ['reported just now, hours ago', viewOf({ reportedAtMs: NOW_MS - 180 * MINUTE_MS }), []],
  ])('of a node that %s', (_, view, findings) => {
    expect(audit(view)).toEqual(findings);
  });

  test('of a node that does not run has nothing', () => {
    const view = unreportedFor(10);
    view.monotonicMs += ALIVE_MS;
    expect(audit(view)).toEqual([]);
  });
});

test('conflicts and missing reports are counted at collection, until its end', async () => {
  const shown = new ReadMetrics('podwire.ipam.');
  const view = unreportedFor(10, { conflicts: [CONFLICT] });
  const stop = observeSessions(() => Promise.resolve(sessionState(view)));
  expect(await shown.read()).toEqual(['nodes.conflicts node=n1 1', 'nodes.unreported 1']);
  stop();
  observeSessions(() => Promise.reject(new Error('away')));
  expect(await shown.read()).toEqual([]);
  metrics.disable();
});
