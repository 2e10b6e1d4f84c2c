import fc from 'fast-check';
import { expect, it } from 'vitest';

import { MapView } from '../allocator/map-view.fixture.js';
import type { AffinityState, Block, BlockOwner } from '../allocator/records.js';
import type { RecordValue } from '../allocator/view.js';
import { Draft } from './draft.js';
import { MemoryStore } from './memory/memory-store.js';
import { encodeRecord, serialize } from './record/record.js';
import { emptyBlock, forever, keys, prefix, settleEvents, startReplica } from './store.fixture.js';

const OWNERS: readonly BlockOwner[] = [
  { kind: 'host', name: 'n1' },
  { kind: 'host', name: 'n2' },
];
const CIDRS = ['10.0.0.0/31', '10.0.0.2/31', '10.0.0.4/31'];

type Fill = 'empty' | 'full' | 'cooling';

function blockOf(cidr: string, owner: BlockOwner | undefined, fill: Fill): Block {
  const block = { ...emptyBlock(cidr), owner };
  if (fill === 'empty') return block;
  const releasedAtMs = fill === 'cooling' ? 1000 : undefined;
  const attributes = [{ handleId: fill === 'full' ? 'h' : undefined, owner: {}, releasedAtMs }];
  return { ...block, allocations: [0, 0], unallocated: [], attributes };
}

const ownerIndex = fc.option(fc.nat(1), { nil: undefined });
const records: fc.Arbitrary<RecordValue> = fc.oneof(
  fc
    .record({
      cidr: fc.constantFrom(...CIDRS),
      owner: ownerIndex,
      fill: fc.constantFrom<Fill>('empty', 'full', 'full', 'cooling'),
    })
    .map(({ cidr, owner, fill }): RecordValue => {
      return { kind: 'block', value: blockOf(cidr, owner === undefined ? undefined : OWNERS[owner], fill) };
    }),
  fc
    .record({
      cidr: fc.constantFrom(...CIDRS),
      owner: fc.constantFrom(...OWNERS),
      state: fc.constantFrom<AffinityState>('confirmed', 'confirmed', 'pending'),
    })
    .map(({ cidr, owner, state }): RecordValue => ({ kind: 'affinity', value: { owner, block: prefix(cidr), state } })),
);
const changes = fc.array(fc.record({ type: fc.constantFrom('put', 'put', 'delete', 'expect'), record: records }), {
  maxLength: 8,
});

function shown(view: Pick<MapView, 'unspentAffinitiesOf' | 'affinitiesOf' | 'blocksIn'>): unknown {
  return [
    OWNERS.map((owner) => view.unspentAffinitiesOf(owner)),
    OWNERS.map((owner) => view.affinitiesOf(owner)),
    [...view.blocksIn(prefix('10.0.0.0/24'))].map((block) => block.prefix),
  ];
}

it('mirror and draft show, after any changes, what looking at every record would', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(records, { maxLength: 8 }), changes, changes, async (stored, committed, drafted) => {
      const store = new MemoryStore();
      const map = new MapView();
      const put = async (record: RecordValue): Promise<void> => {
        map.put(record);
        const puts = [{ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }];
        await store.commit({ comparisons: [], puts, deletes: [] }, forever);
      };
      for (const record of stored) await put(record);
      const { mirror } = await startReplica(store);
      for (const { type, record } of committed) {
        if (type === 'expect') continue;
        if (type === 'put') await put(record);
        else await store.commit({ comparisons: [], puts: [], deletes: [keys.of(record)] }, forever);
        if (type === 'delete') map.apply({ changes: [{ type, record }], outcome: undefined });
      }
      await settleEvents();
      expect(shown(mirror.view)).toEqual(shown(map));
      const draft = new Draft(mirror, keys, { marksReleases: false });
      for (const { type, record } of drafted) {
        draft.fold([{ type, record }]);
        map.apply({ changes: [{ type, record }], outcome: undefined });
        expect(shown(draft)).toEqual(shown(map));
      }
      await mirror.close();
    }),
    { seed: 20261121, numRuns: 200 },
  );
});
