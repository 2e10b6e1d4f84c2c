import fc from 'fast-check';
import { expect, test } from 'vitest';

import { block } from '../testing/records.js';
import type { Item } from './item.js';
import { NodeItems } from './node-items.js';
import { nodeNameOf, type WatchedObject } from './watched.js';

const NODES = ['n1', 'n2', 'n3'];

function listing(nodeName: string): WatchedObject {
  const value = { block: block('10.65.0.0/26', nodeName), poolName: undefined, affinityState: undefined };
  return { kind: 'block', value };
}

test('are those of all that are of the node, whenever they are first asked for', () => {
  const step = fc.record({ key: fc.constantFrom('a', 'b', 'c', 'd'), nodeName: fc.constantFrom(...NODES, undefined) });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 30 }), fc.nat(30), (steps, askedAt) => {
      const all = new Map<string, Item>();
      const ofNodes = new NodeItems(all);
      for (const [index, { key, nodeName }] of steps.entries()) {
        if (index === askedAt) ofNodes.of('n1');
        const item = all.get(key);
        if (nodeName === undefined) {
          all.delete(key);
          if (item) ofNodes.removed(key, item.object);
        } else if (item) {
          const before = item.object;
          item.object = listing(nodeName);
          ofNodes.changed(item, before);
        } else {
          const made = { key, object: listing(nodeName), madeAt: 1, encoded: undefined, changeNumber: -1 };
          all.set(key, made);
          ofNodes.made(made);
        }
      }
      for (const nodeName of NODES) {
        const expected = [...all.values()].filter(({ object }) => nodeNameOf(object) === nodeName);
        expect(new Set(ofNodes.of(nodeName).values())).toEqual(new Set(expected));
        expect([...ofNodes.of(nodeName).keys()].sort()).toEqual(expected.map(({ key }) => key).sort());
      }
    }),
  );
});
