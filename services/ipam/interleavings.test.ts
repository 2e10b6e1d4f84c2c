import { Writable } from 'node:stream';

import { Failure } from '@podwire/shared/failure/failure';
import { createLogger } from '@podwire/shared/runtime/log';
import { addressAt, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { disagreements, readAll } from './agreement.fixture.js';
import { attributesFor } from './allocator/attributes.js';
import { checkPool } from './allocator/check-pool.js';
import type { MapView } from './allocator/map-view.fixture.js';
import { affinity, attachment, block, claimedBlock, NOW_MS, prefix, request } from './allocator/records.fixture.js';
import type { AllocationRequest, Block } from './allocator/records.js';
import { tunnelHandleId } from './allocator/tunnel.js';
import type { RecordValue } from './allocator/view.js';
import { Events } from './events.js';
import {
  beginEffect,
  Controller,
  explore,
  HeldStore,
  type Deliveries,
  type HeldStoreOptions,
  type Run,
} from './interleavings.fixture.js';
import { Ipam } from './ipam.js';
import { HistoryLog } from './store/history-log.js';
import { MemoryStore } from './store/memory/memory-store.js';
import { Mirror } from './store/mirror.js';
import { encodeRecord, serialize } from './store/record/record.js';
import { forever, keys } from './store/store.fixture.js';
import { Updater } from './store/update.js';

const destination = new Writable({ write: (_chunk, _encoding, done) => done() });
const events = new Events(createLogger({ service: 'test', level: 'fatal', destination }));

/** An operation in words for the answer that its caller gets, which is all that it can be judged by. */
interface Operation {
  readonly name: string;
  readonly run: (ipam: Ipam) => Promise<string>;
  /** Whether it is one transaction, so that some order of whole operations has to explain what came of it. */
  readonly isAtomic: boolean;
}

const operation = (name: string, run: Operation['run'], isAtomic = true): Operation => ({ name, run, isAtomic });

/** Containers of one pod compete for its endpoint as well. */
const POD = { namespace: 'default', name: 'web', uid: '' };

function allocate(id: string, rest: Partial<AllocationRequest> = {}): Operation {
  const node = rest.nodeName ?? 'n1';
  return operation(`allocate ${id} on ${node}`, async (ipam) => {
    const wanted = request(id, { pod: undefined, ...rest });
    const { endpoint } = await ipam.addresses.allocate(wanted, forever);
    return endpoint.addresses.map(({ address }) => formatPrefix(address)).join(' ');
  });
}

const release = (id: string): Operation =>
  operation(`release ${id}`, async (ipam) => {
    const { addresses } = await ipam.addresses.release(attachment(id), forever);
    return addresses.map(formatPrefix).join(' ');
  });

const releaseHandle = (id: string): Operation =>
  operation(`release handle of ${id}`, async (ipam) => {
    const addresses = await ipam.handles.release({ handleId: `net.${id}`, searchesAllBlocks: false }, forever);
    return addresses.map(formatPrefix).join(' ');
  });

function poolSpec(name: string, cidr: string) {
  const blockSizeBits = cidr.includes(':') ? 127 : 31;
  const checked = checkPool({ name, cidr, blockSizeBits, disabled: false });
  if (!checked.ok) throw new Error('the pool is at fault');
  return checked.spec;
}

const createPool = (name: string, cidr: string): Operation =>
  operation(`create pool ${cidr}`, async (ipam) => (await ipam.pools.create(poolSpec(name, cidr), forever)).pool.name);

const deletePool = (whenInUse: 'drain' | 'refuse' | 'release'): Operation =>
  operation(
    `delete the pool (${whenInUse})`,
    async (ipam) => {
      const { isGone } = await ipam.pools.delete({ name: 'p', resourceVersion: '', whenInUse }, forever);
      return isGone ? 'gone' : 'draining';
    },
    false,
  );

const splitPool = operation('split the pool', async (ipam) => {
  const request = { pool: { by: 'name', name: 'p' }, partsCount: 2, resourceVersion: '' } as const;
  const split = await ipam.pools.split(request, forever);
  return split.ok ? split.parts.map(({ pool }) => pool.name).join(' ') : 'at fault';
});

const deleteNode = (name: string): Operation =>
  operation(
    `delete node ${name}`,
    async (ipam) => JSON.stringify(await ipam.nodes.delete({ name, resourceVersion: '' }, forever)),
    false,
  );

const claim = (cidr: string, nodeName: string): Operation =>
  operation(`claim ${cidr} for ${nodeName}`, async (ipam) => {
    const { claimed } = await ipam.affinities.claim({ cidr: prefix(cidr), nodeName }, forever);
    return claimed.map(formatPrefix).join(' ');
  });

const note = (id: string, text: string): Operation =>
  operation(`note "${text}" on the address of ${id}`, async (ipam) => {
    const { owner } = attributesFor({ attachment: attachment(id), nodeName: 'n1', pod: undefined }, NOW_MS);
    const second = { expectedAlternate: undefined, alternate: undefined };
    const now = { sequenceNumber: undefined, expected: owner, attributes: { ...owner, note: text }, ...second };
    const address = addressAt(prefix('10.0.0.0/30'), 1);
    return JSON.stringify(
      await ipam.addresses.setAttributes({ address, handleId: `net.${id}`, ...now }, forever),
      text64,
    );
  });

/** Names a second owner, unless there is one. */
const second = (id: string, pod: string): Operation =>
  operation(`${pod} as the second owner of the address of ${id}`, async (ipam) => {
    const first = { sequenceNumber: undefined, expected: undefined, attributes: undefined };
    const change = { address: addressAt(prefix('10.0.0.0/30'), 1), handleId: `net.${id}`, ...first };
    const holder = await ipam.addresses.setAttributes(
      { ...change, expectedAlternate: {}, alternate: { pod } },
      forever,
    );
    return String(holder.alternateOwner?.pod);
  });

const text64 = (_key: string, value: unknown): unknown => (typeof value === 'bigint' ? undefined : value);

/** Looks as well: without that, whoever borrows once it is answered would look like one who did so before. */
const makeStrict = operation('make affinity strict, and look at what there is to borrow', async (ipam) => {
  const { config } = await ipam.configuration.update(
    { changes: { strictAffinity: true }, resourceVersion: '' },
    forever,
  );
  const { state } = await ipam.addresses.get(addressAt(prefix('10.0.0.0/30'), 0), forever);
  return `${config.strictAffinity} ${state.kind}`;
});

const TUNNEL = 'wireguardTunnelAddress';

const tunnel = (nodeName: string): Operation =>
  operation(`an address for the tunnel of ${nodeName}`, async (ipam) =>
    formatPrefix((await ipam.nodes.assignTunnel({ nodeName, kind: TUNNEL }, forever)).address),
  );

const endTunnel = (nodeName: string): Operation =>
  operation(`no address for the tunnel of ${nodeName}`, async (ipam) => {
    const { released } = await ipam.nodes.releaseTunnel({ nodeName, kind: TUNNEL }, forever);
    return released.map(formatPrefix).join(' ');
  });

const repair: Operation = operation(
  'repair',
  async (ipam) => {
    const order = { kinds: [], dryRun: false, releases: true, graceMs: 0, limit: 100 };
    const { results } = await ipam.audits.repair(order, forever);
    return results.map(({ finding, result }) => `${finding.kind} ${result.state}`).join(', ');
  },
  false,
);

interface Scenario {
  readonly name: string;
  /** Done one after another before. */
  readonly before?: readonly Operation[];
  /** Written behind everybody's back before. */
  readonly damage?: readonly RecordValue[];
  readonly operations: readonly Operation[];
  /** Whether changes are brought to replicas at every possible moment, which makes very many orders. */
  readonly isThorough?: boolean;
}

/** Where the operations run. */
interface Way {
  /** On one replica, or each on its own. */
  readonly isShared: boolean;
  readonly deliveries: Deliveries;
}

/** A replica on a store: what a process is. */
async function startReplica(options: HeldStoreOptions) {
  const store = new HeldStore(options);
  const { clock } = options.controller;
  const random = (): number => 0;
  const mirror = await Mirror.start({ store, keys, clock, random, report: () => undefined }, forever);
  const updater = new Updater({ store, mirror, keys, clock, random });
  let uids = 0;
  const ipam = new Ipam({
    updates: updater,
    events,
    clock,
    newUid: () => `uid-${uids++}`,
    unknownNodes: 'register',
    history: { log: new HistoryLog(store, keys), keptHoursCount: 0 },
  });
  const end = async (): Promise<void> => {
    await updater.close();
    await mirror.close();
  };
  return { ipam, end };
}

const ALONE = { replica: 0, deliveries: 'prompt' } as const;

/** The records that a scenario begins with. */
async function prepare({ before = [], damage = [] }: Scenario) {
  const store = new MemoryStore();
  const { ipam, end } = await startReplica({ ...ALONE, store, controller: new Controller(NOW_MS) });
  await ipam.pools.create(poolSpec('p', '10.0.0.0/30'), forever);
  for (const each of before) await each.run(ipam);
  await end();
  const puts = damage.map((record) => ({ key: keys.of(record), value: serialize(encodeRecord(record, undefined)) }));
  if (puts.length > 0) await store.commit({ comparisons: [], puts, deletes: [] }, forever);
  return (await store.list('', forever)).records;
}

type Records = Awaited<ReturnType<typeof prepare>>;

async function storeWith(records: Records): Promise<MemoryStore> {
  const store = new MemoryStore();
  await store.commit({ comparisons: [], puts: records, deletes: [] }, forever);
  return store;
}

/** An answer, or the code of the refusal. A defect is neither. */
async function answerOf(run: () => Promise<string>): Promise<string> {
  try {
    return await run();
  } catch (error) {
    if (!(error instanceof Failure) || error.code === 'INTERNAL') throw error;
    return error.code;
  }
}

/** What the records come to, but for the numbers and times that tell when they were written. */
function meaningOf(view: MapView): string {
  return view
    .snapshot()
    .flatMap(([key, record]) => {
      switch (record.kind) {
        case 'block': {
          const { owner, allocations, unallocated, attributes } = record.value;
          const heldBy = (index: number): string =>
            `${attributes[index]?.handleId} ${attributes[index]?.owner.note ?? ''} ${attributes[index]?.alternateOwner?.pod ?? ''}`;
          const held = allocations.map((index) => (index === null ? null : heldBy(index)));
          return [`${key} ${owner?.name} ${held.join()} free ${unallocated.join()}`];
        }
        case 'affinity':
          return [`${key} ${record.value.state}`];
        case 'handle':
          return [`${key} ${JSON.stringify([...record.value.blocks].sort())}`];
        case 'endpoint':
          return [`${key} ${record.value.addresses.map(({ address }) => formatPrefix(address)).join()}`];
        case 'pool':
          return [`${key} ${record.value.disabled} ${record.value.deletionTimeMs !== undefined}`];
        case 'node':
          return [`${key} ${[...record.value.tunnels.values()].map(({ address }) => formatPrefix(address)).join()}`];
        case 'config':
          return [`${key} ${record.value.strictAffinity}`];
        case 'reservation':
        case 'requestPolicies':
          return [key];
      }
    })
    .join('\n');
}

interface Outcome {
  readonly answers: readonly string[];
  readonly meaning: string;
}

const outcomeText = ({ answers, meaning }: Outcome): string => `${answers.join(' | ')}\n${meaning}`;

function orders<Value>(values: readonly Value[]): Value[][] {
  if (values.length === 0) return [[]];
  return values.flatMap((value, index) => orders(values.toSpliced(index, 1)).map((rest) => [value, ...rest]));
}

/** What comes of the operations one after another, in this order. */
async function inTurn(records: Records, operations: readonly Operation[], order: readonly number[]): Promise<Outcome> {
  const store = await storeWith(records);
  const { ipam, end } = await startReplica({ ...ALONE, store, controller: new Controller(NOW_MS) });
  const answers: string[] = [];
  for (const index of order) answers[index] = await answerOf(() => operations[index]!.run(ipam));
  await end();
  return { answers, meaning: meaningOf(await readAll(store, keys)) };
}

interface Concurrency {
  readonly operations: readonly Operation[];
  readonly way: Way;
  readonly records: Records;
  /** What may come of them; undefined where some are not done at once. */
  readonly explained: ReadonlySet<string> | undefined;
}

async function beginRun({ operations, way, records, explained }: Concurrency): Promise<Run> {
  const store = await storeWith(records);
  const controller = new Controller(NOW_MS);
  const { isShared, deliveries } = way;
  const count = isShared ? 1 : operations.length;
  const replicas = await Promise.all(
    Array.from({ length: count }, (_, replica) => startReplica({ store, controller, replica, deliveries })),
  );
  await controller.settle();
  controller.arm();
  const answers: string[] = [];
  const failures: unknown[] = [];
  let answered = 0;
  operations.forEach(({ run }, index) => {
    const replica = isShared ? 0 : index;
    void controller
      .hold('begin', replica, beginEffect(deliveries))
      .then(() => answerOf(() => run(replicas[replica]!.ipam)))
      .then(
        (answer) => (answers[index] = answer),
        (error: unknown) => failures.push(error),
      )
      .finally(() => answered++);
  });
  return {
    controller,
    isOver: () => answered === operations.length,
    check: async (steps) => {
      expect(failures).toEqual([]);
      const view = await readAll(store, keys);
      const told = `after ${steps.join(', ')}`;
      expect(disagreements(view, NOW_MS), told).toEqual([]);
      expectOwned(view, told);
      if (explained) expect(explained, told).toContain(outcomeText({ answers, meaning: meaningOf(view) }));
    },
    end: async () => {
      await Promise.all(replicas.map(({ end }) => end()));
    },
  };
}

/** Every address that an endpoint names is held once. */
function expectOwned(view: MapView, told: string): void {
  const named = view.endpoints().flatMap(({ value }) => value.addresses.map(({ address }) => formatPrefix(address)));
  expect(new Set(named).size, told).toBe(named.length);
  const held = view
    .blocks()
    .flatMap(({ prefix: cidr, allocations }) =>
      allocations.flatMap((index, ordinal) =>
        index === null ? [] : [formatPrefix(hostPrefix(addressAt(cidr, ordinal)))],
      ),
    );
  expect(new Set(held).size, told).toBe(held.length);
  expect(tunnelsIn(view), told).toEqual(tunnelsHeld(view));
  // Notes are for c1 alone.
  const noted = view.blocks().flatMap(({ attributes }) => attributes.filter(({ owner }) => owner.note !== undefined));
  expect(new Set(['net.c1', ...noted.map(({ handleId }) => handleId)]), told).toEqual(new Set(['net.c1']));
}

/** What the nodes' records say of the addresses of their tunnels. */
function tunnelsIn(view: MapView): string[] {
  return view
    .nodes()
    .flatMap(({ name, tunnels }) =>
      [...tunnels].map(([kind, { address }]) => `${formatPrefix(address)} ${tunnelHandleId(name, kind)}`),
    )
    .sort();
}

/** What the blocks say of them. */
function tunnelsHeld(view: MapView): string[] {
  const handleOf = ({ allocations, attributes }: Block, ordinal: number): string =>
    attributes[allocations[ordinal] ?? -1]?.handleId ?? '';
  return view
    .blocks()
    .flatMap((block) =>
      block.allocations.map(
        (_, ordinal) => `${formatPrefix(hostPrefix(addressAt(block.prefix, ordinal)))} ${handleOf(block, ordinal)}`,
      ),
    )
    .filter((text) => text.includes('tunnel-addr-'))
    .sort();
}

async function exploreScenario(scenario: Scenario, way: Way) {
  const { operations } = scenario;
  const records = await prepare(scenario);
  const isAtomic = operations.every((each) => each.isAtomic);
  const explained = new Set<string>();
  if (isAtomic)
    for (const order of orders(operations.map((_, index) => index)))
      explained.add(outcomeText(await inTurn(records, operations, order)));
  return explore(() => beginRun({ operations, way, records, explained: isAtomic ? explained : undefined }));
}

const one = allocate('c1', { pod: POD });
const two = allocate('c2', { pod: POD });
const both = allocate('c4', { pod: undefined, families: [4, 6] });
const far = allocate('c3', { nodeName: 'n2' });
const given = (id: string, nodeName = 'n1', ordinal = 1): Operation =>
  allocate(id, { nodeName, addresses: [addressAt(prefix('10.0.0.0/30'), ordinal)] });
/** The second block is full. */
const FULL = [given('c7', 'n2', 2), given('c8', 'n2', 3)];
/** The first one has an address left, which others can borrow. */
const LENDING = [...FULL, given('c3', 'n3')];
/** The first one is empty, and another node's, for so long that it can be had. */
const IDLE = claimedBlock(block('10.0.0.0/31', 'n9', { claimTimeMs: NOW_MS - 3_600_000 }));
const owner = allocate('c9', { nodeName: 'n9' });
const lender = allocate('c5', { nodeName: 'n3' });
const six = createPool('six', 'fd00::/126');

const STRAY: RecordValue = { kind: 'handle', value: { id: 'net.c1', blocks: new Map([['10.0.0.0/31', 1]]) } };
const PENDING: RecordValue = { kind: 'affinity', value: affinity('10.0.0.2/31', 'n1', 'pending') };

/** A pool of two blocks of two addresses, and a block or two in use. */
const SCENARIOS: readonly Scenario[] = [
  { name: 'one attachment twice', operations: [one, one], isThorough: true },
  { name: 'two containers, no block', operations: [one, two], isThorough: true },
  { name: 'two containers, one address left', before: [far, allocate('c0'), allocate('c9')], operations: [one, two] },
  { name: 'two nodes', operations: [one, far], isThorough: true },
  { name: 'the last block', before: [far], operations: [one, allocate('c5', { nodeName: 'n3' })] },
  { name: 'an attachment comes and goes', before: [one], operations: [one, release('c1')], isThorough: true },
  { name: 'a sandbox replaces another', before: [one], operations: [two, release('c1')], isThorough: true },
  {
    name: 'a release and who waits for its address',
    before: [one, two, far, allocate('c0', { nodeName: 'n2' })],
    operations: [release('c1'), allocate('c5')],
  },
  { name: 'one release twice', before: [one], operations: [release('c1'), release('c1')] },
  { name: 'two releases', before: [one, two], operations: [release('c1'), release('c2')] },
  {
    name: 'a release by handle and one by attachment',
    before: [one],
    operations: [releaseHandle('c1'), release('c1')],
  },
  { name: 'a release by handle and the attachment’s return', before: [one], operations: [releaseHandle('c1'), one] },
  { name: 'both families', before: [six], operations: [both, both] },
  { name: 'both families and a release of them', before: [six, both], operations: [both, release('c4')] },
  { name: 'a given address twice', operations: [given('c1'), given('c2', 'n2')] },
  {
    name: 'a given address and one that comes by itself',
    before: [allocate('c0')],
    operations: [given('c1'), allocate('c2')],
  },
  { name: 'pools that overlap', operations: [createPool('a', '10.1.0.0/30'), createPool('b', '10.1.0.0/29')] },
  { name: 'claims of one block', operations: [claim('10.0.0.0/31', 'n1'), claim('10.0.0.0/31', 'n2')] },
  { name: 'a claim and an allocation', operations: [claim('10.0.0.0/30', 'n2'), one] },
  { name: 'a pool goes while an address is given', operations: [deletePool('drain'), one] },
  { name: 'a pool is to go unless it is used', operations: [deletePool('refuse'), one] },
  { name: 'a pool goes with its addresses', before: [one], operations: [deletePool('release'), two] },
  { name: 'a pool goes with its last address', before: [one], operations: [deletePool('drain'), release('c1')] },
  { name: 'a pool is split while an address is given', operations: [splitPool, one] },
  { name: 'a pool is split while addresses go and come', before: [one], operations: [splitPool, release('c1'), far] },
  { name: 'a pool is split while a block is claimed', operations: [splitPool, claim('10.0.0.0/31', 'n1'), far] },
  { name: 'a pool is split twice', operations: [splitPool, splitPool] },
  { name: 'a pool is split and goes', before: [one], operations: [splitPool, deletePool('drain')] },
  { name: 'a node goes while it gets an address', before: [one], operations: [deleteNode('n1'), two] },
  { name: 'a node goes while it gives one back', before: [one, two], operations: [deleteNode('n1'), release('c1')] },
  { name: 'a node goes twice', before: [one], operations: [deleteNode('n1'), deleteNode('n1')] },
  { name: 'a repair of what is coming', damage: [STRAY, PENDING], operations: [repair, one] },
  { name: 'a repair of what is going', before: [one], damage: [STRAY, PENDING], operations: [repair, release('c1')] },
  { name: 'two repairs', damage: [STRAY, PENDING], operations: [repair, repair] },
  { name: 'three containers', operations: [one, two, allocate('c5')] },
  { name: 'three nodes and two blocks', operations: [one, far, allocate('c5', { nodeName: 'n3' })] },
  {
    name: 'a container comes, another goes, a third takes its name',
    before: [one],
    operations: [release('c1'), two, allocate('c5', { pod: POD })],
  },
  { name: 'an attachment comes twice and goes', operations: [one, one, release('c1')] },
  { name: 'three releases', before: [one, two], operations: [release('c1'), releaseHandle('c1'), release('c2')] },
  {
    name: 'a handle that is right by what was left in it',
    damage: [STRAY],
    operations: [one, release('c1')],
    isThorough: true,
  },
  { name: 'a handle that is read before its block', damage: [STRAY], operations: [two, one, release('c1')] },
  { name: 'a repair among others', damage: [STRAY], operations: [repair, one, release('c1')] },
  { name: 'attributes that are set twice', before: [given('c1')], operations: [note('c1', 'a'), note('c1', 'b')] },
  { name: 'a second owner, twice', before: [given('c1')], operations: [second('c1', 'a'), second('c1', 'b')] },
  { name: 'a second owner and attributes', before: [given('c1')], operations: [second('c1', 'a'), note('c1', 'b')] },
  { name: 'attributes of an address that goes', before: [given('c1')], operations: [note('c1', 'a'), release('c1')] },
  { name: 'attributes beside an allocation', before: [given('c1')], operations: [note('c1', 'a'), allocate('c2')] },
  { name: 'attributes while the node goes', before: [given('c1')], operations: [note('c1', 'a'), deleteNode('n1')] },
  {
    name: 'attributes of an address that goes to another',
    before: [given('c1'), allocate('c0'), ...FULL],
    operations: [note('c1', 'a'), release('c1'), given('c2')],
  },
  {
    name: 'attributes while the pool goes with its last address',
    before: [given('c1'), deletePool('drain')],
    operations: [note('c1', 'a'), release('c1')],
  },
  { name: 'an empty block of another node, twice', before: FULL, damage: IDLE, operations: [one, lender] },
  { name: 'an empty block that its node uses', before: FULL, damage: IDLE, operations: [one, owner] },
  { name: 'an empty block whose node goes', before: FULL, damage: IDLE, operations: [one, deleteNode('n9')] },
  { name: 'an empty block whose pool goes', before: FULL, damage: IDLE, operations: [one, deletePool('drain')] },
  { name: 'an empty block, used and left', before: FULL, damage: IDLE, operations: [one, owner, release('c9')] },
  { name: 'the last address, borrowed', before: LENDING, operations: [one, lender] },
  { name: 'an address, borrowed while another comes back', before: LENDING, operations: [one, release('c3')] },
  {
    name: 'nothing is borrowed once affinity is known to be strict',
    before: LENDING,
    operations: [one, makeStrict],
  },
  { name: 'an address, borrowed while its node goes', before: LENDING, operations: [one, deleteNode('n3')] },
  { name: 'an address, borrowed while its pool goes', before: LENDING, operations: [one, deletePool('drain')] },
  {
    name: 'a borrowed address that comes back, and two who wait',
    before: [...LENDING, one],
    operations: [release('c1'), lender, allocate('c6', { nodeName: 'n4' })],
  },
  { name: 'a tunnel’s address twice', before: [one], operations: [tunnel('n1'), tunnel('n1')] },
  {
    name: 'a tunnel’s address that comes and goes',
    before: [one, tunnel('n1')],
    operations: [endTunnel('n1'), tunnel('n1')],
  },
  { name: 'a tunnel’s address and a container’s', before: [one, ...FULL], operations: [tunnel('n1'), two] },
  { name: 'a tunnel’s address while the node goes', before: [one], operations: [tunnel('n1'), deleteNode('n1')] },
  { name: 'a tunnel’s address while the pool goes', before: [one], operations: [tunnel('n1'), deletePool('drain')] },
  {
    name: 'a tunnel’s address that comes and goes, and a container',
    before: [one, tunnel('n1')],
    operations: [endTunnel('n1'), tunnel('n1'), two],
  },
  {
    name: 'a pool, a node and an allocation',
    operations: [createPool('a', '10.1.0.0/31'), claim('10.0.0.2/31', 'n2'), one],
  },
];

const WAYS: readonly Way[] = [
  { isShared: true, deliveries: 'prompt' },
  { isShared: false, deliveries: 'prompt' },
  { isShared: false, deliveries: 'late' },
];

const THOROUGH: Way = { isShared: false, deliveries: 'anytime' };

describe.each(SCENARIOS)('$name', (scenario) => {
  const names = scenario.operations.map(({ name }) => name).join('; ');
  const ways = scenario.isThorough ? [...WAYS, THOROUGH] : WAYS;

  test.each(ways)(
    `every order of: ${names} (one replica: $isShared, changes: $deliveries)`,
    async (way) => {
      const { ordersCount } = await exploreScenario(scenario, way);
      expect(ordersCount).toBeGreaterThan(0);
      // Where changes are brought at any moment, each of the two commits at least may be brought before the other's begin, or after.
      if (way === THOROUGH) expect(ordersCount).toBeGreaterThan(10);
    },
    60_000,
  );
});
