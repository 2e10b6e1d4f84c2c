import { expect, it } from 'vitest';

import type { RecordValue } from '../view.js';
import { decodeRecord, writeRecord, type DecodedRecord } from './registry.js';

function handle(id: string): RecordValue {
  return { kind: 'handle', value: { id, blocks: new Map([['10.65.80.0/26', 1]]) } };
}

const blocksOf = ({ record }: DecodedRecord) => record.kind === 'handle' && record.value.blocks;

it('shares its map of blocks with equal handles, written or read', () => {
  const [first, second] = ['net.a', 'net.b'].map((id) => writeRecord(handle(id), undefined));
  expect(second?.decoded.record).toEqual(handle('net.b'));
  expect(first && second && blocksOf(first.decoded) === blocksOf(second.decoded)).toBe(true);
  const read = decodeRecord(
    '/calico/ipam/v2/handle/net.c',
    { kind: 'handle', id: 'net.c' },
    second?.bytes ?? Buffer.from(''),
  );
  expect(read.record).toEqual(handle('net.c'));
  expect(second && blocksOf(read) === blocksOf(second.decoded)).toBe(true);
});
