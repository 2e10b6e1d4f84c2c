import { formatPrefix } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { expect, it } from 'vitest';

import type { AffinityState, Block, BlockOwner } from '../../records/block.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import { MapView } from '../../records/testing/map-view.js';
import type { RecordValue, View } from '../../records/view.js';
import { MemoryStore } from '../testing/memory-store.js';
import { emptyBlock, forever, keys, prefix, settleEvents, startReplica } from '../testing/stores.js';
import { Draft } from '../updates/draft.js';

const OWNERS: readonly BlockOwner[] = [
  { kind: 'host', name: 'n1' },
  { kind: 'host', name: 'n2' },
];
const CIDRS = ['10.0.0.0/31', '10.0.0.2/31', '10.0.0.4/31'];
const RANGES = ['10.0.0.0/24', '10.0.0.0/30', '10.0.0.4/31', '10.0.0.5/32', '10.0.0.8/29'].map(prefix);
const LARGE = '10.0.0.0/16';
/** Ranges of unreadable blocks; the last is larger than any block. */
const NONSENSE = ['10.0.0.6/31', '10.0.0.8/30', '10.0.0.0/20', LARGE];

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

function shown(view: View): unknown {
  const cidrsOf = (blocks: Iterable<Block>): string[] => [...blocks].map((block) => formatPrefix(block.prefix));
  return [
    RANGES.map((range) =>
      [view.blocksWithRoomIn(range), view.idleBlocksIn(range), view.blocksWithoutAffinityIn(range)].map(cidrsOf),
    ),
    [...CIDRS, '10.0.0.6/31', '10.0.0.0/30'].map((cidr) => view.consecutiveBlocks(prefix(cidr))),
    RANGES.map((range) => view.unreadableBlock(range)?.name.prefix),
    NONSENSE.map((cidr) => view.unreadableRecord({ kind: 'block', prefix: prefix(cidr) })?.key),
    OWNERS.map((owner) => view.usableAffinitiesOf(owner)),
    RANGES.map((range) => view.blockStatsIn(range)),
    OWNERS.map((owner) => view.affinitiesOf(owner)),
    [...view.blocksIn(prefix('10.0.0.0/24'))].map((block) => block.prefix),
  ];
}

const scenarios = fc.record({
  stored: fc.array(records, { maxLength: 8 }),
  nonsense: fc.subarray(NONSENSE),
  corrected: fc.subarray(NONSENSE),
  committed: changes,
  drafted: changes,
});

async function putText(store: MemoryStore, cidr: string, text: string): Promise<void> {
  const puts = [{ key: keys.block(prefix(cidr)), value: Buffer.from(text) }];
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
}

it('mirror and draft show, after any changes, the same as reading every record', async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async ({ stored, nonsense, corrected, committed, drafted }) => {
      const store = new MemoryStore();
      const map = new MapView();
      const put = async (record: RecordValue): Promise<void> => {
        map.put(record);
        const puts = [{ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }];
        await store.commit({ comparisons: [], puts, deletes: [] }, forever);
      };
      for (const record of stored) await put(record);
      for (const cidr of nonsense) await putText(store, cidr, 'nonsense');
      const { mirror } = await startReplica(store);
      for (const cidr of corrected) {
        if (cidr === LARGE)
          await store.commit({ comparisons: [], puts: [], deletes: [keys.block(prefix(cidr))] }, forever);
        else await put({ kind: 'block', value: emptyBlock(cidr) });
      }
      for (const cidr of nonsense.filter((text) => !corrected.includes(text))) {
        const name = { kind: 'block', prefix: prefix(cidr) } as const;
        map.setAside.push({ key: keys.ofName(name), name, reason: 'it is not JSON' });
      }
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
