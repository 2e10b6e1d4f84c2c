import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { ipamAddresses } from '../addresses/ipam-addresses.js';
import type { Limits } from '../clients/clients.js';
import { JournalEvents } from '../journal/events.js';
import { Journal } from '../journal/journal.js';
import { readNodeRequest, type NodeRequest } from '../requests/request.js';
import { MemoryJournalStore } from '../testing/journal-store.js';
import { FakeNodeAddresses } from '../testing/node-addresses.js';
import { BOOT_ID, recordingLog } from '../testing/plugin.js';
import { Readiness, ReadinessEvents } from './readiness.js';
import { ReadinessRecord } from './readiness-record.js';

const REQUEST: NodeRequest = readNodeRequest('STATUS', {
  plugin: 'podwire',
  variables: {},
  configuration: JSON.stringify({ cniVersion: '1.1.0', name: 'net' }),
  traceContext: {},
  startedNs: undefined,
  arrivedNs: 0n,
  cancel: new AbortController(),
});

/** Only time passes between two queries of the services. */
const PAUSE_MS = 2000;

let clock: ManualClock;
let folder: string;
let record: ReturnType<typeof recordingLog>;
/** Reads the strict answer. */
let readiness: Readiness;
/** Another process of the plugin on the node. */
let start: (isStrict: boolean, bootId?: string) => Promise<Readiness>;
/** How often podwire-ipam was called, the time limit of the latest call, and its answer. */
let asked: number;
let givenMs: number;
let answer: () => Promise<boolean>;
/** Why podwire-ipam has no address. */
let refusal: () => Promise<string | undefined>;
let nodeAddresses: FakeNodeAddresses;
/** A socket without podwire-ipam. */
let unreachablePeer: string | undefined;
/** Whether the dataplane can wire pods. */
let wires: boolean;

beforeEach(async () => {
  clock = new ManualClock();
  folder = mkdtempSync(join(tmpdir(), 'podwire-readiness-'));
  record = recordingLog();
  asked = 0;
  answer = () => Promise.resolve(true);
  refusal = () => Promise.resolve(undefined);
  unreachablePeer = undefined;
  wires = true;
  const unused = () => Promise.reject(new Error('not for STATUS'));
  const isServing = ({ deadlineMs }: Limits) => {
    asked++;
    givenMs = deadlineMs - clock.nowMs();
    return answer();
  };
  const events = new JournalEvents(recordingLog().log);
  const journal = new Journal({ store: new MemoryJournalStore(), maxEntriesCount: 1, clock, events });
  await journal.load();
  const ipam = {
    allocate: unused,
    authorize: unused,
    release: unused,
    getEndpoint: unused,
    poolCidr: unused,
    podCidrs: unused,
    releaseHeld: unused,
    endpointsOf: unused,
    refusalOf: () => refusal(),
    isServing,
    unreachablePeer: () => unreachablePeer,
  };
  nodeAddresses = new FakeNodeAddresses();
  const provider = ipamAddresses({ ipam, nodeAddresses, nodeName: 'node-1', clock });
  const dataplane = { isServing: () => wires };
  const { log } = record;
  start = async (isStrict, bootId = BOOT_ID) => {
    const record = new ReadinessRecord({ path: join(folder, 'node-ready'), bootId, log });
    await record.load();
    const rest = { journal, record, events: new ReadinessEvents(log), isStrict };
    return new Readiness({ providers: { of: () => provider }, dataplane, nodeName: 'node-1', clock, ...rest });
  };
  readiness = await start(true);
});

afterEach(async () => {
  await readiness.stop();
  rmSync(folder, { recursive: true });
});

const ready = () => readiness.require(REQUEST);

/** Runs the poller until its next pause. */
async function paused(): Promise<void> {
  await vi.waitFor(() => expect(clock.sleeping).toBe(1), { interval: 1, timeout: 20_000 });
}

async function pass(durationMs: number): Promise<void> {
  await paused();
  clock.advance(durationMs);
  await paused();
}

const silence = () => Promise.reject(new Failure('DEADLINE_EXCEEDED', 'no answer'));

describe('repeated STATUS requests of a runtime', () => {
  test('are answered without a call to a service', async () => {
    await ready();
    expect(asked).toBe(1);
    for (let times = 0; times < 10; times++) await ready();
    expect(asked).toBe(1);
  });

  test('are backed by a query of the services every two seconds', async () => {
    await ready();
    for (let pauses = 1; pauses <= 3; pauses++) {
      await pass(PAUSE_MS);
      expect(asked).toBe(1 + pauses);
      await ready();
    }
    expect(asked).toBe(4);
  });

  test('fail when a service hangs, without a wait', async () => {
    await ready();
    answer = silence;
    await pass(PAUSE_MS);
    const before = asked;
    await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
    expect(asked).toBe(before);
  });

  test('are not answered from data older than three seconds when polling stopped', async () => {
    await ready();
    let letGo: () => void = () => undefined;
    answer = () => new Promise((resolve) => (letGo = () => resolve(true)));
    await paused();
    clock.advance(PAUSE_MS);
    await vi.waitFor(() => expect(asked).toBe(2), { interval: 1, timeout: 20_000 });
    await ready();
    clock.advance(1000);
    const answered = vi.fn();
    const waiting = ready().then(answered);
    await Promise.resolve();
    expect(answered).not.toHaveBeenCalled();
    letGo();
    await waiting;
    expect(asked).toBe(2);
  });

  test('keep polling for a minute after the last one', async () => {
    await ready();
    await paused();
    clock.advance(60_000);
    await vi.waitFor(() => expect(clock.sleeping).toBe(0), { interval: 1, timeout: 20_000 });
    expect(asked).toBe(1);
    await ready();
    expect(asked).toBe(2);
  });
});

test('services that still restore their state are reported without a wait', async () => {
  answer = () => Promise.resolve(false);
  wires = false;
  await expect(ready()).rejects.toMatchObject({
    code: 'NOT_READY',
    message:
      "podwire-ipam is not serving: see its log; the node's dataplane is not serving: see the log of podwire-node",
  });
});

test('a lack of addresses is reported as podwire-ipam words it', async () => {
  refusal = () => Promise.resolve('pool pods is disabled');
  await expect(ready()).rejects.toMatchObject({
    message: 'podwire-ipam has no address for a pod: pool pods is disabled',
  });
});

test('another machine with the node’s name is reported as podwire-ipam words it', async () => {
  nodeAddresses.refusal = new Failure('NODE_NAME_TAKEN', 'node name "n" belongs to another machine');
  await expect(ready()).rejects.toMatchObject({
    message: 'podwire-ipam has no address for a pod: node name "n" belongs to another machine',
  });
});

test('a service that refuses is named once, with one reason for both questions', async () => {
  const refuses = () => Promise.reject(new Failure('STORE_UNAVAILABLE', 'podwire-ipam at unix:/run/i.sock: EACCES'));
  [refusal, answer] = [refuses, refuses];
  await expect(ready()).rejects.toMatchObject({ message: 'podwire-ipam at unix:/run/i.sock: EACCES' });
});

test('an absent service and one that hangs have different reasons', async () => {
  answer = silence;
  unreachablePeer = 'podwire-ipam at unix:/run/i.sock';
  await expect(ready()).rejects.toMatchObject({
    message: 'podwire-ipam at unix:/run/i.sock is not reached within 800 ms: check that it runs and listens there',
  });
});

describe('a service that is slow', () => {
  let letGo: () => void = () => undefined;
  const hold = () => {
    answer = () => new Promise((resolve) => (letGo = () => resolve(true)));
  };

  test('delays STATUS by 0.3 s at most; its later answer is kept', async () => {
    hold();
    const refused = expect(ready()).rejects.toMatchObject({
      code: 'NOT_READY',
      message: 'podwire-ipam does not answer within 300 ms',
    });
    await vi.waitFor(() => expect(clock.sleeping).toBe(2), { interval: 1, timeout: 20_000 });
    clock.advance(300);
    await refused;
    await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
    expect([asked, givenMs]).toEqual([1, 800]);
    letGo();
    await vi.waitFor(() => ready(), { interval: 1, timeout: 20_000 });
    expect(asked).toBe(1);
  });

  test('keeps a ready node ready, without a wait', async () => {
    await ready();
    hold();
    await paused();
    clock.advance(PAUSE_MS);
    await vi.waitFor(() => expect(asked).toBe(2), { interval: 1, timeout: 20_000 });
    clock.advance(700);
    await ready();
    letGo();
    await paused();
    clock.advance(1000);
    await ready();
    expect(asked).toBe(2);
  });
});

test('a service that is reachable again is noticed within a second', async () => {
  answer = silence;
  await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
  answer = () => Promise.resolve(true);
  await paused();
  clock.advance(999);
  await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
  clock.advance(1);
  await ready();
});

test('a defect is reported to the next request, and is not kept', async () => {
  await ready();
  answer = () => Promise.reject(new TypeError('defect'));
  await pass(PAUSE_MS);
  clock.advance(1000);
  await expect(ready()).rejects.toThrow('defect');
  answer = () => Promise.resolve(true);
  await ready();
});

test('a clock that is set back does not prolong an answer', async () => {
  answer = silence;
  await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
  answer = () => Promise.resolve(true);
  await paused();
  clock.setBack(3_600_000);
  clock.advance(1000);
  await ready();
});

describe('a node that was ready once since its boot', () => {
  const OUTAGE_MS = 30_000;

  beforeEach(async () => {
    await readiness.stop();
    readiness = await start(false);
    await ready();
  });

  /** Polls the services for a time, while a runtime sends STATUS every five seconds. */
  async function askedFor(durationMs: number): Promise<void> {
    for (let passedMs = 0; passedMs < durationMs; passedMs += PAUSE_MS) {
      await pass(PAUSE_MS);
      await ready();
    }
  }

  test.each([
    ['the pools are exhausted', () => (refusal = () => Promise.resolve('pool pods has no address left'))],
    ['podwire-ipam is not serving', () => (answer = () => Promise.resolve(false))],
    ['podwire-ipam is down', () => ([answer, refusal] = [silence, silence])],
  ])('stays ready while %s, without a time limit', async (_, fail) => {
    fail();
    await askedFor(60_000);
    await expect(readiness.requireAdd(REQUEST)).rejects.toMatchObject({ code: 'NOT_READY' });
  });

  test('stays ready for 30 s while the dataplane is not serving, and is not ready after that until it recovers', async () => {
    wires = false;
    await askedFor(OUTAGE_MS);
    await pass(2 * PAUSE_MS);
    await expect(ready()).rejects.toMatchObject({
      code: 'NOT_READY',
      message: expect.stringMatching(/^the node's dataplane is not serving/),
    });
    wires = true;
    await pass(PAUSE_MS);
    await ready();
    wires = false;
    await askedFor(OUTAGE_MS);
  });

  test('is answered at once by the next process, before any query of the services', async () => {
    await readiness.stop();
    answer = () => new Promise(() => undefined);
    readiness = await start(false);
    await ready();
  });

  test('is not ready after a reboot before an ADD can succeed', async () => {
    await readiness.stop();
    answer = () => Promise.resolve(false);
    readiness = await start(false, '99999999-2222-4333-8444-555555555555');
    await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
    await paused();
    clock.advance(1000);
    answer = () => Promise.resolve(true);
    await ready();
  });

  test('gets the strict answer where the setting requires it', async () => {
    await readiness.stop();
    readiness = await start(true);
    answer = () => Promise.resolve(false);
    await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
  });

  test('logs why ADDs fail, once for each change', async () => {
    refusal = () => Promise.resolve('pool pods has no address left');
    await askedFor(3 * PAUSE_MS);
    refusal = () => Promise.resolve(undefined);
    await askedFor(3 * PAUSE_MS);
    expect(record.lines().map(({ level, msg }) => [level, msg])).toEqual([
      ['warn', 'network net: an ADD would fail: podwire-ipam has no address for a pod: pool pods has no address left'],
      ['info', 'network net: ADDs can succeed again'],
    ]);
  });

  test('has an outage of the same length when the clock is set back', async () => {
    wires = false;
    await askedFor(OUTAGE_MS - PAUSE_MS);
    clock.setBack(3_600_000);
    await ready();
    await pass(3 * PAUSE_MS);
    await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
  });

  test('counts as never ready when the file is unreadable, with a log line', async () => {
    await readiness.stop();
    writeFileSync(join(folder, 'node-ready'), '{');
    answer = () => Promise.resolve(false);
    readiness = await start(false);
    await expect(ready()).rejects.toMatchObject({ code: 'NOT_READY' });
    expect(record.lines()[0]).toMatchObject({
      level: 'warn',
      msg: expect.stringContaining('node-ready cannot be read'),
    });
  });
});
