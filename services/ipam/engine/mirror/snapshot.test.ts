import { formatAddress } from '@podwire/shared/net/address';
import {
  addressAt,
  comparePrefixes,
  formatPrefix,
  prefixContains,
  prefixSize,
  type Prefix,
} from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';
import fc from 'fast-check';
import { expect, it } from 'vitest';

import {
  addStats,
  blockStats,
  EMPTY_STATS,
  hasFreeOrCooling,
  isExhausted,
  isIdle,
  isWithoutAffinity,
} from '../../records/block-stats.js';
import { sameOwner, type Affinity, type AffinityState, type Block, type BlockOwner } from '../../records/block.js';
import { formatEndpointKey, makeEndpoint, type AnyEndpoint } from '../../records/endpoint.js';
import { encodeRecord, serialize } from '../../records/json/registry.js';
import type { NodeSession, StoreEpoch } from '../../records/session.js';
import { foreignRecord, session } from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import type { EndpointRecord, RecordValue, UnreadableBlock, View } from '../../records/view.js';
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
/** The first two have the same hash, as `Aa` and `BB` do. */
const CONTAINERS = ['c-Aa', 'c-BB', 'c1', 'c2'];
const containers = fc.constantFrom(...CONTAINERS);

function own(containerId: string, replaced: readonly AnyEndpoint[] = []): AnyEndpoint {
  const attachment = { network: 'net', containerId, interfaceName: 'eth0' };
  const value = makeEndpoint({ attachment, nodeName: 'n1', pod: undefined, netns: undefined, createdAtMs: 1000 }, []);
  return { kind: 'endpoint', value: replaced.length > 0 ? { ...value, replaced } : value };
}

function foreign(containerId: string): AnyEndpoint {
  const stored = JSON.stringify({ spec: { containerID: containerId } });
  const { kind, value } = foreignRecord('', { containerId, stored });
  if (kind !== 'foreignEndpoint') throw new Error('it is Podwire’s');
  return { kind, value };
}

const endpoints: fc.Arbitrary<RecordValue> = fc
  .record({
    namespace: fc.constantFrom('a', 'a-b', 'b'),
    name: fc.constantFrom('w', 'x', 'y', 'z'),
    endpoint: fc.oneof(
      containers.map((id) => own(id)),
      containers.map(foreign),
      fc.tuple(containers, containers, containers).map(([id, second, third]) => own(id, [own(second), foreign(third)])),
    ),
  })
  .map(({ namespace, name, endpoint }) => ({ key: { namespace, name }, ...endpoint }));

/** Each node's session lists addresses of its own. */
const sessions: fc.Arbitrary<RecordValue> = fc
  .record({ index: fc.nat(1), listed: fc.subarray([0, 1]), generation: fc.integer({ min: 1, max: 3 }) })
  .map(({ index, listed, generation }): RecordValue => {
    const at = (ordinal: number) => addressAt(prefix(CIDRS[index] ?? ''), ordinal);
    const leases = listed.map((ordinal) => ({ address: at(ordinal), sequenceNumber: 7n }));
    return { kind: 'nodeSession', value: session(OWNERS[index]?.name ?? '', { leases, generation }) };
  });

const changes = fc.array(
  fc.record({
    type: fc.constantFrom('put', 'put', 'delete', 'expect'),
    record: fc.oneof(records, endpoints, sessions),
  }),
  {
    maxLength: 8,
  },
);

/** The methods of a view whose answers come from indexes. */
type Indexed = Pick<
  View,
  | 'blocksIn'
  | 'blocksWithRoomIn'
  | 'idleBlocksIn'
  | 'blocksWithoutAffinityIn'
  | 'blockStatsIn'
  | 'consecutiveBlocks'
  | 'affinitiesOf'
  | 'usableAffinitiesOf'
  | 'allEndpointsAfter'
  | 'foreignEndpoints'
  | 'endpointsOfContainer'
  | 'unreadableBlock'
  | 'session'
  | 'sessions'
  | 'lessee'
  | 'unreadableRecord'
>;

/** Answers by reading every record. */
function scanning(all: ReadonlyMap<string, RecordValue>, unreadable: readonly UnreadableBlock[]): Indexed {
  const blocks = [...all.values()]
    .flatMap((record) => (record.kind === 'block' ? [record.value] : []))
    .sort((a, b) => comparePrefixes(a.prefix, b.prefix));
  const within = (range: Prefix): Block[] => blocks.filter((block) => prefixContains(range, block.prefix));
  const blockAt = (wanted: Prefix) => blocks.find((block) => comparePrefixes(block.prefix, wanted) === 0);
  const affinitiesOf = (owner: BlockOwner): Affinity[] =>
    [...all.values()]
      .flatMap((record) => (record.kind === 'affinity' && sameOwner(record.value.owner, owner) ? [record.value] : []))
      .sort((a, b) => comparePrefixes(a.block, b.block));
  const affinityOf = ({ owner, prefix: of }: Block) =>
    owner && affinitiesOf(owner).find((affinity) => comparePrefixes(affinity.block, of) === 0);
  const ofEndpoints = [...all.values()]
    .filter((record): record is EndpointRecord & RecordValue => /endpoint/i.test(record.kind))
    .sort((a, b) => compareTexts(formatEndpointKey(a.key), formatEndpointKey(b.key)));
  const containerOf = (one: AnyEndpoint) =>
    one.kind === 'endpoint' ? one.value.attachment.containerId : one.value.containerId;
  const ofSessions = [...all.values()].flatMap((one) => (one.kind === 'nodeSession' ? [one.value] : []));
  const unreadableBlocks = unreadable.toSorted((a, b) => comparePrefixes(a.name.prefix, b.name.prefix));
  return {
    blocksIn: within,
    blocksWithRoomIn: (range) => within(range).filter(hasFreeOrCooling),
    idleBlocksIn: (range) => within(range).filter(isIdle),
    blocksWithoutAffinityIn: (range) => within(range).filter((block) => isWithoutAffinity(block, affinityOf(block))),
    blockStatsIn: (range) => within(range).map(blockStats).reduce(addStats, EMPTY_STATS),
    consecutiveBlocks: (first) => {
      let count = 0;
      while (blockAt({ ...first, value: first.value + BigInt(count) * prefixSize(first) })) count++;
      return count;
    },
    affinitiesOf,
    usableAffinitiesOf: (owner) =>
      affinitiesOf(owner).filter((affinity) => !isExhausted(affinity, blockAt(affinity.block))),
    allEndpointsAfter: (after) => ofEndpoints.filter(({ key }) => formatEndpointKey(key) > after),
    foreignEndpoints: () => ofEndpoints.flatMap((one) => (one.kind === 'foreignEndpoint' ? [one] : [])),
    endpointsOfContainer: (id) =>
      ofEndpoints.filter((one) =>
        [one, ...(one.kind === 'endpoint' ? (one.value.replaced ?? []) : [])].some((each) => containerOf(each) === id),
      ),
    unreadableBlock: (range) =>
      unreadableBlocks.find(({ name }) => prefixContains(range, name.prefix)) ??
      unreadableBlocks.find(({ name }) => prefixContains(name.prefix, range) && prefixSize(name.prefix) <= 4096n),
    session: (name) => ofSessions.find((one) => one.name === name),
    sessions: () => ofSessions,
    lessee: (address) =>
      ofSessions.find(({ leases }) => leases.some((lease) => formatAddress(lease.address) === formatAddress(address)))
        ?.name,
    unreadableRecord: (name) => unreadable.find(({ key }) => key === keys.ofName(name)),
  };
}

const [B0, B1] = [
  { machineId: 'm0', bootId: 'b0' },
  { machineId: 'm1', bootId: 'b1' },
];

it('shows for how long a session and an epoch are unchanged, also when they are listed again', () => {
  const view = new TestView();
  const put = (rest: Partial<NodeSession> = {}) => view.put({ kind: 'nodeSession', value: session('n1', rest) });
  const putEpoch = (id: string, phase: StoreEpoch['phase']) =>
    view.put({ kind: 'storeEpoch', value: { id, importId: '', phase } });
  const ages = () => [view.sessionAgeMs('n1'), view.displacedAgeMs('n1', 'b0'), view.epochAgeMs()];
  expect(view.sessionAgeMs('n1')).toBe(0);
  put({ displaced: [B0] });
  putEpoch('e1', 'first');
  view.monotonicMs = 10;
  put({ displaced: [B0] });
  putEpoch('e1', 'waiting');
  expect(ages()).toEqual([10, 10, 10]);
  put({ displaced: [B0], revision: 2 });
  putEpoch('e2', 'waiting');
  expect(ages()).toEqual([0, 10, 0]);
  view.monotonicMs = 15;
  const draft = view.clone(() => true);
  expect([draft.sessionAgeMs('n1'), draft.displacedAgeMs('n1', 'b0'), draft.epochAgeMs()]).toEqual([5, 15, 5]);
  put({ displaced: [B0, B1], revision: 3 });
  expect(ages()).toEqual([0, 15, 5]);
  expect(view.displacedAgeMs('n1', 'b1')).toBe(0);
  expect(view.reportAgeMs('n1')).toBe(15);
  put({ revision: 4, reportedAtMs: 1 });
  expect(view.reportAgeMs('n1')).toBe(0);
});

function shown(view: Indexed): unknown {
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
    OWNERS.map(({ name }) => view.session(name)),
    [...view.sessions()].map(({ name }) => name).sort(),
    CIDRS.flatMap((cidr) => [0, 1].map((ordinal) => view.lessee(addressAt(prefix(cidr), ordinal)))),
    ['', 'a/', 'a/x', 'a-b/', 'b/z'].map((after) => [...view.allEndpointsAfter(after)].map(keyOfEndpoint)),
    [view.foreignEndpoints(), ...CONTAINERS.map((id) => view.endpointsOfContainer(id))].map((found) =>
      [...found].map(keyOfEndpoint).sort(),
    ),
  ];
}

function keyOfEndpoint({ key }: Pick<EndpointRecord, 'key'>): string {
  return formatEndpointKey(key);
}

const scenarios = fc.record({
  stored: fc.array(fc.oneof(records, endpoints, sessions), { maxLength: 12 }),
  nonsense: fc.subarray(NONSENSE),
  corrected: fc.subarray(NONSENSE),
  committed: changes,
  drafted: changes,
});

async function putText(store: MemoryStore, cidr: string, text: string): Promise<void> {
  const puts = [{ key: keys.block(prefix(cidr)), value: Buffer.from(text) }];
  await store.commit({ comparisons: [], puts, deletes: [] }, forever);
}

it('property: mirror and drafts show, after any changes, the same as reading every record', async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async ({ stored, nonsense, corrected, committed, drafted }) => {
      const store = new MemoryStore();
      const all = new Map<string, RecordValue>();
      const put = async (record: RecordValue): Promise<void> => {
        all.set(keys.of(record), record);
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
      const unreadable = nonsense.flatMap((cidr): UnreadableBlock[] => {
        const name = { kind: 'block', prefix: prefix(cidr) } as const;
        return corrected.includes(cidr) ? [] : [{ key: keys.ofName(name), name, reason: 'it is not JSON' }];
      });
      for (const { type, record } of committed) {
        if (type === 'expect') continue;
        if (type === 'put') await put(record);
        else await store.commit({ comparisons: [], puts: [], deletes: [keys.of(record)] }, forever);
        if (type === 'delete') all.delete(keys.of(record));
      }
      await settleEvents();
      const committedShown = shown(scanning(all, unreadable));
      expect(shown(mirror.view)).toEqual(committedShown);
      const draft = new Draft(mirror, keys, { marksReleases: false });
      for (const { type, record } of drafted) {
        draft.fold([{ type, record }]);
        if (type === 'put') all.set(keys.of(record), record);
        if (type === 'delete') all.delete(keys.of(record));
        expect(shown(draft.view)).toEqual(shown(scanning(all, unreadable)));
      }
      expect(shown(mirror.view)).toEqual(committedShown);
      await mirror.close();
    }),
    { seed: 20261121, numRuns: 200 },
  );
});
