import fc from 'fast-check';
import { expect, test } from 'vitest';

import { endpointKey, formatEndpointKey, makeEndpoint } from '../../records/endpoint.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { RecordValue } from '../../records/view.js';
import { MemoryStore } from '../testing/memory-store.js';
import { forever, keys, startReplica } from '../testing/stores.js';
import { Draft } from '../updates/draft.js';

const podName = fc.constantFrom('a', 'b', 'c', 'd', 'e');
const namespace = fc.constantFrom('a', 'a-b', 'b');
const endpoint = fc
  .record({ podName, namespace, createdAtMs: fc.constantFrom(1000, 2000) })
  .map((asked): RecordValue => {
    const attachment = { network: 'net', containerId: 'c1', interfaceName: 'eth0' };
    const pod = { namespace: asked.namespace, name: asked.podName, uid: '' };
    const { createdAtMs } = asked;
    const value = makeEndpoint({ attachment, nodeName: 'n1', pod, netns: undefined, createdAtMs }, []);
    return { kind: 'endpoint', key: endpointKey(value), value };
  });

test('a draft shows the endpoints in the order of their keys, with its changes', async () => {
  const change = fc.record({ type: fc.constantFrom('put', 'delete', 'expect'), record: endpoint });
  await fc.assert(
    fc.asyncProperty(
      fc.array(endpoint),
      fc.array(change),
      fc.tuple(namespace, podName),
      async (stored, changes, [space, name]) => {
        const store = new MemoryStore();
        const shown = new Map<string, RecordValue>(stored.map((record) => [keys.of(record), record]));
        const puts = [...shown].map(([key, record]) => ({ key, value: serialize(encodeRecord(record, undefined)) }));
        await store.commit({ comparisons: [], puts, deletes: [] }, forever);
        const { mirror } = await startReplica(store);
        const draft = new Draft(mirror, keys, { marksReleases: false });
        for (const { type, record } of changes) {
          draft.fold([{ type, record }]);
          if (type === 'put') shown.set(keys.of(record), record);
          if (type === 'delete') shown.delete(keys.of(record));
        }
        for (const after of ['', `${space}/`, `${space}/n1-k8s-${name}-eth0`, `${space}0`]) {
          const expected = [...shown.keys()]
            .map((key) => key.slice(keys.endpoints.length))
            .filter((key) => key > after);
          const found = [...draft.endpointsAfter(after)];
          expect(found.map(({ key }) => formatEndpointKey(key))).toEqual(expected.sort());
          for (const record of found) expect(shown.get(keys.endpoint(record.key))).toMatchObject(record);
        }
      },
    ),
  );
});
