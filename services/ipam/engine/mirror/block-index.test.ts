import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { allocate } from '../../addresses/allocate.js';
import type { Block } from '../../records/block.js';
import type { RecordValue } from '../../records/view.js';
import { block, claimedBlock, fullBlock, NOW_MS, poolRecord, prefix, request } from '../../testing/records.js';
import { keys } from '../testing/stores.js';
import { IndexedRecords } from './snapshot.js';

const BLOCKS = 4096;
const OLD = { claimTimeMs: NOW_MS - 3_600_000 };

/** Counts its calls. */
class CountingImage extends IndexedRecords {
  asked = 0;

  override block(of: Prefix): Block | undefined {
    this.asked++;
    return super.block(of);
  }

  override consecutiveBlocks(first: Prefix): number {
    this.asked++;
    return super.consecutiveBlocks(first);
  }

  override *blocksIn(range: Prefix): Generator<Block, void, void> {
    for (const found of super.blocksIn(range)) {
      this.asked++;
      yield found;
    }
  }
}

function cidrAt(place: number): string {
  return `10.0.${place >> 4}.${(place % 16) * 16}/28`;
}

function blocksBut(left: number, make: (cidr: string, nodeName: string) => Block): RecordValue[] {
  const places = Array.from({ length: BLOCKS }, (_, place) => place).filter((place) => place !== left);
  return places.flatMap((place) => claimedBlock(make(cidrAt(place), `node-${place % 500}`)));
}

function imageOf(records: readonly RecordValue[]): CountingImage {
  const image = new CountingImage(keys, () => true);
  for (const record of [poolRecord('p', '10.0.0.0/16', { blockSizeBits: 28 }), ...records])
    image.set(keys.of(record), record);
  image.asked = 0;
  return image;
}

function allocation(image: CountingImage) {
  const { outcome } = allocate(image, { request: request('c1', { nodeName: 'asking' }), nowMs: NOW_MS });
  const { endpoint, ...gained } = outcome;
  return { blocks: endpoint.addresses.map((address) => formatPrefix(address.block)), gained, asked: image.asked };
}

const LEFT = 1234;

describe('of 4096 blocks, an address', () => {
  test('of the only block without an owner takes a few lookups, whether the others are full or not', () => {
    for (const make of [fullBlock, (cidr: string, name: string) => block(cidr, name, OLD)]) {
      const found = allocation(imageOf(blocksBut(LEFT, make)));
      expect(found.blocks).toEqual([cidrAt(LEFT)]);
      expect(found.gained.claimed).toHaveLength(1);
      expect(found.asked).toBeLessThan(100);
    }
  });

  test('of the only empty one takes a few lookups', () => {
    const records = claimedBlock(block(cidrAt(LEFT), 'another', OLD));
    const found = allocation(imageOf([...blocksBut(LEFT, fullBlock), ...records]));
    expect(found.blocks).toEqual([cidrAt(LEFT)]);
    expect(found.gained.reclaimed).toHaveLength(1);
    expect(found.asked).toBeLessThan(100);
  });

  test('of the only one with room takes a few lookups', () => {
    const taken = { ...fullBlock(cidrAt(LEFT), 'another'), unallocated: [7] };
    const roomy = { ...taken, allocations: taken.allocations.with(7, null) };
    const found = allocation(imageOf([...blocksBut(LEFT, fullBlock), ...claimedBlock(roomy)]));
    expect(found.blocks).toEqual([cidrAt(LEFT)]);
    expect(found.gained.borrowed).toHaveLength(1);
    expect(found.asked).toBeLessThan(100);
  });

  test('is found by every search until it is used', () => {
    const image = imageOf([...blocksBut(LEFT, fullBlock)]);
    const given = new Set<string>();
    for (let index = 0; index < 16; index++) {
      const wish = request(`c${index}`, { nodeName: `asking-${index % 3}` });
      const { changes, outcome } = allocate(image, { request: wish, nowMs: NOW_MS });
      for (const change of changes) {
        if (change.type === 'put') image.set(keys.of(change.record), change.record);
        if (change.type === 'delete') image.delete(keys.of(change.record));
      }
      for (const { address } of outcome.endpoint.addresses) given.add(formatAddress(address));
    }
    expect(given.size).toBe(16);
    const last = () => allocate(image, { request: request('last'), nowMs: NOW_MS });
    expect(last).toThrow(/all 4096 blocks are full/);
    expect([...image.blocksWithRoomIn(prefix('10.0.0.0/16'))]).toEqual([]);
  });
});
