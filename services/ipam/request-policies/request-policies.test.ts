import { describe, expect, test } from 'vitest';

import { TestView } from '../testing/test-view.js';
import { versionOf } from '../records/versions.js';
import { NOW_MS } from '../testing/records.js';
import { rules } from '../testing/request-policies.js';
import { REQUEST_POLICIES } from './request-policies.js';

const spec = (name: string, namespaces: readonly string[] = []) => ({
  name,
  namespaces,
  namespaceSelector: '',
  rules: rules({ pools: {} }),
});

const create = (view: TestView, name: string) =>
  view.apply(REQUEST_POLICIES.create(view, { spec: spec(name), uid: `uid-${name}`, nowMs: NOW_MS }));

describe('request policies', () => {
  test('are kept in the order of their names, in one record', () => {
    const view = new TestView();
    for (const name of ['m', 'z', 'a']) create(view, name);
    expect(view.snapshot().map(([key]) => key)).toEqual(['requestPolicies']);
    expect(view.requestPolicies().map(({ name }) => name)).toEqual(['a', 'm', 'z']);
    expect(REQUEST_POLICIES.list(view, { after: 'a', limit: 1 })).toMatchObject({ items: [{ name: 'm' }], more: true });
    view.apply(REQUEST_POLICIES.delete(view, { name: 'm', resourceVersion: '' }));
    expect(REQUEST_POLICIES.list(view, { after: '', limit: 5 })).toMatchObject({
      items: [{ name: 'a' }, { name: 'z' }],
      more: false,
    });
    expect(() => create(view, 'a')).toThrow(expect.objectContaining({ code: 'REQUEST_POLICY_EXISTS' }));
    expect(() => REQUEST_POLICIES.get(view, 'm')).toThrow(
      expect.objectContaining({ code: 'REQUEST_POLICY_NOT_FOUND' }),
    );
  });

  test('change only if unchanged since the requested version', () => {
    const view = new TestView();
    const { uid, createTimeMs, ...made } = create(view, 'a');
    const resourceVersion = versionOf({ uid, createTimeMs, ...made });
    const { value, changed } = view.apply(REQUEST_POLICIES.update(view, { spec: spec('a', ['red']), resourceVersion }));
    expect([value, changed]).toEqual([{ ...made, uid, createTimeMs, namespaces: ['red'] }, true]);
    const stale = expect.objectContaining({ code: 'STALE_VERSION' });
    expect(() => REQUEST_POLICIES.update(view, { spec: spec('a'), resourceVersion })).toThrow(stale);
    expect(() => REQUEST_POLICIES.delete(view, { name: 'a', resourceVersion })).toThrow(stale);
    expect(REQUEST_POLICIES.update(view, { spec: spec('a', ['red']), resourceVersion: '' })).toEqual({
      changes: [],
      outcome: { value, changed: false },
    });
  });

  test('have to fit together into a value of the datastore', () => {
    const view = new TestView();
    const namespaces = Array.from({ length: 1000 }, (_, index) => `${'n'.repeat(55)}-${index}`);
    const big = (name: string) =>
      REQUEST_POLICIES.create(view, { spec: spec(name, namespaces), uid: '', nowMs: NOW_MS });
    for (let count = 0; count < 8; count++) view.apply(big(`p${count}`));
    expect(() => big('p8')).toThrow(expect.objectContaining({ code: 'STORE_LIMIT' }));
    expect(view.requestPolicies()).toHaveLength(8);
  });

  test('that cannot be read are not changed, and not reported as none', () => {
    const view = new TestView();
    view.setAside({ kind: 'requestPolicies' }, 'torn');
    const corrupt = expect.objectContaining({ code: 'STORE_CORRUPT' });
    expect(() => create(view, 'a')).toThrow(corrupt);
    expect(() => REQUEST_POLICIES.list(view, { after: '', limit: 1 })).toThrow(corrupt);
  });
});
