import { describe, expect, test } from 'vitest';

import { failureOf, session } from '../testing/records.js';
import { TestView } from '../testing/test-view.js';
import { beginEpoch, endWait, isAwaited, requireReports } from './epoch.js';

const begin = (view: TestView, importId: string, id: string) => view.apply(beginEpoch(view, { id, importId }));

const restored = () =>
  new TestView([
    { kind: 'nodeSession', value: session('n1', { epoch: 'e1' }) },
    { kind: 'nodeSession', value: session('n2', { epoch: 'e1' }) },
  ]);

describe('the start of the service', () => {
  test('begins the first epoch, which awaits no node', () => {
    const view = new TestView([{ kind: 'nodeSession', value: session('n1') }]);
    expect(begin(view, 'i1', 'e1')).toBe(false);
    expect(view.epoch()).toEqual({ id: 'e1', importId: 'i1', phase: 'first' });
    expect(() => requireReports(view)).not.toThrow();
    expect(begin(view, 'i1', 'e2')).toBe(false);
    expect(view.epoch()?.id).toBe('e1');
  });

  test('after an import begins an epoch, which awaits the nodes with a session', () => {
    const view = restored();
    begin(view, '', 'e1');
    expect(begin(view, 'i1', 'e2')).toBe(true);
    const { code, message } = failureOf(() => requireReports(view));
    expect([code, message]).toEqual(['STORE_RESTORED', expect.stringContaining('nodes n1, n2, ')]);
    expect(begin(view, 'i1', 'e3')).toBe(false);
    view.put({ kind: 'nodeSession', value: session('n1', { epoch: 'e2' }) });
    expect(['n1', 'n2', 'n9'].map((name) => isAwaited(view, name))).toEqual([false, true, false]);
    // A node that is deleted is awaited no longer.
    view.remove({ kind: 'nodeSession', name: 'n2' });
    expect(() => requireReports(view)).not.toThrow();
  });
});

describe('the wait for reports', () => {
  const isWaiting = (view: TestView) => failureOf(() => requireReports(view)).code === 'STORE_RESTORED';

  test('lasts as long as a replica has seen the epoch, and ends for replicas that start later', () => {
    const view = restored();
    begin(view, '', 'e1');
    view.monotonicMs += 3_600_000;
    begin(view, 'i1', 'e2');
    view.monotonicMs += 59_999;
    view.apply(endWait(view));
    expect(view.epoch()).toMatchObject({ phase: 'waiting' });
    expect(isWaiting(view)).toBe(true);
    view.monotonicMs += 1;
    expect(() => requireReports(view)).not.toThrow();
    view.apply(endWait(view));
    const late = new TestView([...view.records.values()]);
    expect(() => requireReports(late)).not.toThrow();
    expect(isAwaited(late, 'n1')).toBe(true);
    expect(endWait(late).changes).toEqual([]);
  });

  test('begins again for a replica that starts while it lasts', () => {
    const view = restored();
    begin(view, '', 'e1');
    begin(view, 'i1', 'e2');
    view.monotonicMs += 60_000;
    expect(isWaiting(new TestView([...view.records.values()]))).toBe(true);
  });
});
