import { Writable } from 'node:stream';

import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { addressAt, formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';
import { createLogger } from '@podwire/shared/runtime/log';
import { describe, expect, test } from 'vitest';

import { Events } from '../engine/events.js';
import { Mirror } from '../engine/mirror/mirror.js';
import { inconsistencies, readAll } from '../engine/testing/consistency.js';
import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, keys } from '../engine/testing/stores.js';
import { Updater } from '../engine/updates/update-loop.js';
import { HistoryLog } from '../history/history-log.js';
import { Ipam } from '../ipam.js';
import { tunnelHandleId } from '../nodes/tunnels.js';
import type { Block } from '../records/block.js';
import type { Endpoint } from '../records/endpoint.js';
import { encodeRecord, serialize } from '../records/json/registry.js';
import type { TestView } from '../testing/test-view.js';
import { poolSpec, type Operation } from '../testing/interleaved-operations.js';
import { SCENARIOS, type Scenario } from '../testing/interleaved-scenarios.js';
import {
  beginEffect,
  Controller,
  explore,
  ControlledStore,
  type Deliveries,
  type HeldStoreOptions,
  type Run,
} from '../testing/interleavings.js';
import { NOW_MS } from '../testing/records.js';

const destination = new Writable({ write: (_chunk, _encoding, done) => done() });
const events = new Events(createLogger({ service: 'test', level: 'fatal', destination }));

/** The replicas of the operations. */
interface Way {
  /** Whether all run on one replica, or each on its own. */
  readonly isShared: boolean;
  readonly deliveries: Deliveries;
}

/** A replica on a store: the state of a process. */
async function startReplica(options: HeldStoreOptions) {
  const store = new ControlledStore(options);
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
    history: { log: new HistoryLog(store, keys), retentionHours: 0 },
  });
  const end = async (): Promise<void> => {
    await updater.close();
    await mirror.close();
  };
  return { ipam, end };
}

const ALONE = { replica: 0, deliveries: 'prompt' } as const;

/** The initial records of a scenario. */
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

/** The records without the numbers and times of their writes. */
function meaningOf(view: TestView): string {
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
          return [`${key} ${recordedIn(record.value)}`];
        case 'pool':
          return [`${key} ${record.value.disabled} ${record.value.deletionTimeMs !== undefined}`];
        case 'node':
          return [`${key} ${[...record.value.tunnels.values()].map(({ address }) => formatPrefix(address)).join()}`];
        case 'config':
          return [`${key} ${record.value.strictAffinity}`];
        case 'nodeSession':
          return [
            `${key} ${record.value.generation} ${record.value.leases.map(({ address }) => formatAddress(address)).join()}`,
          ];
        case 'storeEpoch':
        case 'reservation':
        case 'requestPolicies':
        case 'revokedCertificates':
        case 'clusterInformation':
        case 'foreignEndpoint':
          return [key];
      }
    })
    .join('\n');
}

/** Addresses of an endpoint, and of the endpoints that it replaced. */
function recordedIn({ attachment, addresses, replaced = [] }: Endpoint): string {
  const own = `${formatAttachment(attachment)} ${addresses.map(({ address }) => formatPrefix(address)).join()}`;
  const earlier = replaced.map((one) => (one.kind === 'endpoint' ? recordedIn(one.value) : one.value.containerId));
  return [own, ...earlier].join(' before ');
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

/** The outcome of the operations one after another, in this order. */
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
  /** The possible outcomes; undefined where some operations are not a single transaction. */
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
  await controller.untilIdle();
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
    isDone: () => answered === operations.length,
    check: async (steps) => {
      expect(failures).toEqual([]);
      const view = await readAll(store, keys);
      const order = `after ${steps.join(', ')}`;
      expect(inconsistencies(view, NOW_MS), order).toEqual([]);
      expectOwned(view, order);
      if (explained) expect(explained, order).toContain(outcomeText({ answers, meaning: meaningOf(view) }));
    },
    end: async () => {
      await Promise.all(replicas.map(({ end }) => end()));
    },
  };
}

/** Every address that an endpoint names is held once. */
function expectOwned(view: TestView, order: string): void {
  const named = view.endpoints().flatMap(({ value }) => value.addresses.map(({ address }) => formatPrefix(address)));
  expect(new Set(named).size, order).toBe(named.length);
  const held = view
    .blocks()
    .flatMap(({ prefix: cidr, allocations }) =>
      allocations.flatMap((index, ordinal) =>
        index === null ? [] : [formatPrefix(hostPrefix(addressAt(cidr, ordinal)))],
      ),
    );
  expect(new Set(held).size, order).toBe(held.length);
  expect(tunnelsIn(view), order).toEqual(tunnelsHeld(view));
  // Notes are for c1 only.
  const noted = view.blocks().flatMap(({ attributes }) => attributes.filter(({ owner }) => owner.note !== undefined));
  expect(new Set(['net.c1', ...noted.map(({ handleId }) => handleId)]), order).toEqual(new Set(['net.c1']));
}

/** The addresses of tunnels in the nodes' records. */
function tunnelsIn(view: TestView): string[] {
  return view
    .nodes()
    .flatMap(({ name, tunnels }) =>
      [...tunnels].map(([kind, { address }]) => `${formatPrefix(address)} ${tunnelHandleId(name, kind)}`),
    )
    .sort();
}

/** The addresses of tunnels in the blocks. */
function tunnelsHeld(view: TestView): string[] {
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
      // Where changes are delivered at any moment, each of the two commits at least may be delivered before the other's begin, or after.
      if (way === THOROUGH) expect(ordersCount).toBeGreaterThan(10);
    },
    60_000,
  );
});
