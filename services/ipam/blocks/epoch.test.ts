import { describe, expect, test } from 'vitest';

import { ALIVE_MS } from '../records/session.js';
import { failureOf, NOW_MS, session } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { beginEpoch, isAwaited, requireReports } from './epoch.js';

const begin = (view: TestView, importId: string, id: string) =>
  view.apply(beginEpoch(view, { id, nowMs: NOW_MS, importId }));

describe('the start of the service', () => {
  test('begins the first epoch, which awaits no node', () => {
    const view = new TestView([{ kind: 'nodeSession', value: session('n1') }]);
    expect(begin(view, 'i1', 'e1')).toBe(false);
    expect(view.epoch()).toEqual({ id: 'e1', startedAtMs: NOW_MS, importId: 'i1', heardSinceMs: undefined });
    expect(() => requireReports(view, NOW_MS)).not.toThrow();
    expect(begin(view, 'i1', 'e2')).toBe(false);
    expect(view.epoch()?.id).toBe('e1');
  });

  test('after an import begins an epoch, which awaits the nodes that ran last', () => {
    const heardAtMs = NOW_MS - 86_400_000;
    const view = new TestView([
      { kind: 'nodeSession', value: session('n1', { heardAtMs, epoch: 'e1' }) },
      { kind: 'nodeSession', value: session('n2', { heardAtMs: heardAtMs - ALIVE_MS, epoch: 'e1' }) },
      { kind: 'nodeSession', value: session('n3', { heardAtMs: heardAtMs - ALIVE_MS - 1, epoch: 'e1' }) },
    ]);
    begin(view, '', 'e1');
    expect(begin(view, 'i1', 'e2')).toBe(true);
    const { code, message } = failureOf(() => requireReports(view, NOW_MS));
    expect([code, message]).toEqual(['STORE_RESTORED', expect.stringContaining('nodes n1, n2;')]);
    expect(begin(view, 'i1', 'e3')).toBe(false);
    view.put({ kind: 'nodeSession', value: session('n1', { epoch: 'e2' }) });
    expect(['n1', 'n2', 'n3', 'n9'].map((name) => isAwaited(view, name))).toEqual([false, true, false, false]);
    // A node that is deleted is awaited no longer.
    view.remove({ kind: 'nodeSession', name: 'n2' });
    expect(() => requireReports(view, NOW_MS)).not.toThrow();
  });
});
