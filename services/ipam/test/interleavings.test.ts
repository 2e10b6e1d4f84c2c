import { Writable } from 'node:stream';

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
import { encodeRecord, serialize } from '../records/json/registry.js';
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
import { answerOf, expectOwned, meaningOf } from '../testing/outcomes.js';
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
