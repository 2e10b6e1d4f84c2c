import fc from 'fast-check';
import { expect, test } from 'vitest';

import { decodeHandle } from './handle.js';

const decode = (id: string, block: Readonly<Record<string, number>>) =>
  decodeHandle({ deleted: false, block }, { kind: 'handle', id });

test('property: handles are read alike, whether they share a block with other handles or not', () => {
  const cidrs = fc.constantFrom('10.0.0.0/26', '10.0.0.64/26', 'fd00::/122');
  const blocks = fc.dictionary(cidrs, fc.integer({ min: 0, max: 3 }), { noNullPrototype: true });
  fc.assert(
    fc.property(fc.array(blocks, { maxLength: 20 }), (handles) => {
      const read = handles.map((block, index) => decode(`h${index}`, block));
      expect(read.map(({ blocks: each }) => Object.fromEntries(each))).toEqual(handles);
    }),
  );
});

test('handles of one address in a block share its map, which a large datastore has hundreds of thousands of', () => {
  const [first, second] = [decode('a', { '10.0.0.0/26': 1 }), decode('b', { '10.0.0.0/26': 1 })];
  expect(second.blocks).toBe(first.blocks);
  expect(decode('c', { '10.0.0.0/26': 2 }).blocks).not.toBe(first.blocks);
});
