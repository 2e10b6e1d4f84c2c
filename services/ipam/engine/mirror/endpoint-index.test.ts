import fc from 'fast-check';
import { expect, test } from 'vitest';

import { makeEndpoint, type AnyEndpoint } from '../../records/endpoint.js';
import type { EndpointRecord } from '../../records/view.js';
import { attachment, foreignRecord } from '../../testing/records.js';
import { containerIdsOf, EndpointIndex } from './endpoint-index.js';

// The first two have one number, as `Aa` and `BB` have the same hash.
const IDS = ['c-Aa', 'c-BB', 'c1', 'c2'];
const ids = fc.constantFrom(...IDS);

const own = (containerId: string, replaced: readonly AnyEndpoint[] = []): AnyEndpoint => {
  const identity = { attachment: attachment(containerId), nodeName: 'n1', pod: undefined, netns: undefined };
  const value = makeEndpoint({ ...identity, createdAtMs: 0 }, []);
  return { kind: 'endpoint', value: replaced.length > 0 ? { ...value, replaced } : value };
};
const foreign = (containerId: string): AnyEndpoint => {
  const { kind, value } = foreignRecord('', { containerId });
  if (kind !== 'foreignEndpoint') throw new Error('it is not another writer’s');
  return { kind, value };
};
const endpoint = fc.oneof(
  ids.map((id) => own(id)),
  ids.map(foreign),
  fc.tuple(ids, ids, ids).map(([id, second, third]) => own(id, [own(second), foreign(third)])),
);
const step = fc.record({ name: fc.constantFrom('a', 'b', 'c', 'd'), endpoint: fc.option(endpoint) });

test('property: keys are found by container and in order, after any additions and removals', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
      const index = new EndpointIndex();
      const shown = new Map<string, EndpointRecord>();
      for (const { name, endpoint: wanted } of steps) {
        const before = shown.get(name);
        if (before) index.delete(name, before);
        shown.delete(name);
        if (!wanted) continue;
        const record = { key: { namespace: 'default', name }, ...wanted };
        index.add(name, record);
        shown.set(name, record);
      }
      expect([...index.behind('')]).toEqual([...shown.keys()].sort());
      const foreigners = [...shown].flatMap(([name, { kind }]) => (kind === 'foreignEndpoint' ? [name] : []));
      expect([...index.foreign()].sort()).toEqual(foreigners.sort());
      for (const id of IDS) {
        const named = [...shown].flatMap(([name, record]) => (containerIdsOf(record).includes(id) ? [name] : []));
        expect(index.ofContainer(id)).toEqual(expect.arrayContaining(named));
        expect(new Set(index.ofContainer(id)).size).toBe(index.ofContainer(id).length);
      }
      for (const [name, record] of shown) index.delete(name, record);
      expect(IDS.flatMap((id) => index.ofContainer(id))).toEqual([]);
    }),
    { numRuns: 200, verbose: fc.VerbosityLevel.Verbose },
  );
});
