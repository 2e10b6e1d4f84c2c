import { WatchPhase, WatchResponse } from '@podwire/proto/podwire/ipam/v1/watch';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { FakeClock } from '@podwire/shared/testing/clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import type { ClusterChange, IpamFollower, IpamView } from '../cluster/cluster.js';
import { FakeIpam, nodeMessage, poolMessage, routeMessage } from '../testing/ipam.js';
import { recordingLog } from '../testing/pods.js';
import { ClusterWatch, IdleTimeout, type ClusterWatchOptions } from './cluster-watch.js';
import { ClusterEvents } from './events.js';

const TIMEOUT_MS = 30_000;
vi.setConfig({ testTimeout: 4 * TIMEOUT_MS });

class RecordingFollower implements IpamFollower {
  readonly received: { readonly view: IpamView; readonly change: ClusterChange }[] = [];

  follow(view: IpamView, change: ClusterChange): void {
    this.received.push({ view, change });
  }

  stop(): Promise<void> {
    return Promise.resolve();
  }

  get last() {
    return this.received.at(-1)!;
  }
}

let ipam: FakeIpam;
let peer: Peer;
let follower: RecordingFollower;
let lines: Record<string, unknown>[];
let cluster: ClusterWatch;

function make(rest: Partial<ClusterWatchOptions> = {}): ClusterWatch {
  const recording = recordingLog();
  ({ lines } = recording);
  follower = new RecordingFollower();
  return new ClusterWatch({
    self: 'n1',
    ipam: peer,
    followers: [follower],
    events: new ClusterEvents(recording.log),
    clock: systemClock,
    random: () => 0.001,
    ...rest,
  });
}

beforeEach(() => {
  ipam = new FakeIpam();
  peer = new Peer('podwire-ipam', ipam.address);
  cluster = make();
});

afterEach(async () => {
  await cluster.stop();
  peer.close();
  await ipam.dispose();
});

const messagesAt = (level: 'warn' | 'error') =>
  lines.filter((line) => line.level === level).map(({ msg }) => String(msg));
const names = (map: ReadonlyMap<string, unknown>) => [...map.keys()].sort();
const poll = (condition: () => unknown) => expect.poll(condition, { timeout: TIMEOUT_MS });

test('followers receive the first complete view, then each change, with immutable views', async () => {
  ipam.putPool(poolMessage('p', '10.65.0.0/16'));
  for (const at of [1, 2, 3]) ipam.putNode(nodeMessage(`n${at}`, `192.0.2.${at}/24`));
  ipam.putRoute(routeMessage('10.65.0.0/26', 'n1'));
  await ipam.start();
  expect(cluster.view).toBeUndefined();
  cluster.start();
  await poll(() => follower.received.length).toBe(1);
  const [first] = follower.received;
  expect(first?.change).toEqual({ blocks: 'all', hasOtherChanges: true });
  expect(first?.view.self).toBe('n1');
  expect(names(first!.view.cluster.nodes)).toEqual(['n1', 'n2', 'n3']);
  expect(cluster.connection).toBe('connected');
  expect(cluster.conditions()).toEqual([]);

  ipam.putRoute(routeMessage('10.65.0.64/26', 'n2'));
  await poll(() => follower.last.change).toEqual({ blocks: new Set(['10.65.0.64/26']), hasOtherChanges: false });
  ipam.remove('node', 'n3');
  await poll(() => follower.last.change).toEqual({ blocks: new Set(), hasOtherChanges: true });
  expect(names(follower.last.view.cluster.nodes)).toEqual(['n1', 'n2']);
  expect(names(follower.last.view.cluster.blocks)).toEqual(['10.65.0.0/26', '10.65.0.64/26']);
  expect(names(first!.view.cluster.nodes)).toEqual(['n1', 'n2', 'n3']);
  expect(ipam.watchRequests).toMatchObject([{ kinds: [3, 1, 2], resumeToken: '' }]);
});

test('followers learn of the lock at once, and it holds while IPAM is down', async () => {
  ipam.setLock(true);
  await ipam.start();
  cluster.start();
  await poll(() => follower.received.length).toBe(1);
  expect(follower.last).toMatchObject({ view: { isDatastoreLocked: true }, change: { hasLockChanged: true } });
  await ipam.stop();
  await poll(() => cluster.connection).toBe('lost');
  expect(cluster.view?.isDatastoreLocked).toBe(true);
  ipam.setLock(false);
  await ipam.start();
  await poll(() => follower.last.view.isDatastoreLocked).toBe(false);
  ipam.setLock(true);
  await poll(() => follower.last.view.isDatastoreLocked).toBe(true);
  const unrelated = { blocks: new Set(), hasOtherChanges: false, hasLockChanged: true };
  expect(follower.received.slice(1).map(({ change }) => change)).toEqual([unrelated, unrelated]);
});

describe('a stream that is cut', () => {
  beforeEach(async () => {
    ipam.putNode(nodeMessage('n1', '192.0.2.1/24'));
    ipam.putPool(poolMessage('p', '10.65.0.0/16'));
    ipam.putPool(poolMessage('q', '10.66.0.0/16'));
    await ipam.start();
  });

  test('is reopened with a growing back-off, which a complete message resets', async () => {
    const pausesMs: number[] = [];
    // Longer sleeps belong to the idle timeout.
    const sleep: Clock['sleep'] = (durationMs, signal) => {
      if (durationMs >= 10_000) return systemClock.sleep(durationMs, signal);
      pausesMs.push(durationMs);
      return systemClock.sleep(1, signal);
    };
    await cluster.stop();
    cluster = make({ clock: { ...systemClock, sleep }, random: () => 0.5 });
    ipam.cutAfterCount = 1;
    cluster.start();
    await poll(() => pausesMs.length).toBeGreaterThanOrEqual(3);
    const [first = 0, second = 0, third = 0] = pausesMs;
    expect([first < second, second < third, follower.received.length]).toEqual([true, true, 0]);
    ipam.cutAfterCount = Infinity;
    await poll(() => follower.received.length).toBe(1);
    for (let times = 1; times <= 3; times++) {
      pausesMs.length = 0;
      ipam.cut();
      ipam.putRoute(routeMessage(`10.65.0.${times * 64}/26`, 'n1'));
      await poll(() => follower.received.length).toBe(times + 1);
      expect(pausesMs).toHaveLength(1);
      expect(pausesMs[0]).toBeLessThan(1.5 * first);
      expect(pausesMs[0]).toBeGreaterThan(0.5 * first);
    }
  });

  test('resumes at its token, without repeating known changes', async () => {
    cluster.start();
    await poll(() => follower.received.length).toBe(1);
    ipam.cut();
    ipam.putRoute(routeMessage('10.65.0.0/26', 'n1'));
    await poll(() => follower.received.length).toBe(2);
    expect(follower.last.change).toEqual({ blocks: new Set(['10.65.0.0/26']), hasOtherChanges: false });
    expect(ipam.watchRequests.at(-1)?.resumeToken).not.toBe('');
  });

  test('in a snapshot starts the snapshot again', async () => {
    ipam.cutAfterCount = 1;
    ipam.snapshotPartCount = 1;
    cluster.start();
    await poll(() => ipam.watchRequests.length).toBeGreaterThan(2);
    expect(follower.received).toEqual([]);
    ipam.cutAfterCount = Infinity;
    await poll(() => follower.received.length).toBe(1);
    expect(names(follower.last.view.cluster.pools)).toEqual(['p', 'q']);
  });

  test('whose changes IPAM no longer has leads to a snapshot without the removed objects', async () => {
    cluster.start();
    await poll(() => follower.received.length).toBe(1);
    await ipam.stop();
    await poll(() => cluster.connection).toBe('lost');
    ipam.remove('pool', 'q');
    ipam.forgetChanges();
    await ipam.start();
    await poll(() => follower.received.length).toBe(2);
    expect(follower.last.change).toEqual({ blocks: 'all', hasOtherChanges: true });
    expect(names(follower.last.view.cluster.pools)).toEqual(['p']);
  });

  test('again and again is logged once, as is its recovery; the last state stays in use', async () => {
    cluster.start();
    await poll(() => follower.received.length).toBe(1);
    const watches = ipam.watchRequests.length;
    const failure = new Failure('TOO_MANY_STREAMS', 'too many');
    ipam.refusals.push(...Array.from({ length: 10_000 }, () => ({ method: 'Watch', failure })));
    ipam.cut();
    await poll(() => ipam.watchRequests.length - watches).toBeGreaterThan(3);
    expect(cluster.connection).toBe('lost');
    expect(cluster.conditions()).toMatchObject([
      { reason: 'IpamUnreachable', message: expect.stringContaining('its last state of the cluster') },
    ]);
    expect(names(cluster.view!.cluster.pools)).toEqual(['p', 'q']);
    ipam.refusals.length = 0;
    await poll(() => cluster.connection).toBe('connected');
    expect(messagesAt('warn')).toEqual([expect.stringContaining('watch of podwire-ipam at')]);
    expect(lines.filter(({ msg }) => String(msg).startsWith('watching the cluster through'))).toHaveLength(2);
    expect(follower.received).toHaveLength(1);
    expect(cluster.conditions()).toEqual([]);
  });

  test('by an invalid message starts again with a snapshot', async () => {
    cluster.start();
    await poll(() => follower.received.length).toBe(1);
    ipam.nonsense = WatchResponse.fromPartial({ phase: WatchPhase.WATCH_PHASE_SNAPSHOT });
    ipam.putRoute(routeMessage('10.65.0.0/26', 'n1'));
    await poll(() => follower.received.length).toBe(2);
    expect(follower.last.change.blocks).toBe('all');
    expect(ipam.watchRequests.at(-1)?.resumeToken).toBe('');
    expect(names(follower.last.view.cluster.blocks)).toEqual(['10.65.0.0/26']);
  });
});

test('IPAM that is unreachable at the start is logged once, and watched when it answers', async () => {
  cluster = make({ slowStartMs: 20 });
  cluster.start();
  await poll(() => cluster.connection).toBe('lost');
  expect(cluster.conditions()).toMatchObject([
    { reason: 'IpamUnreachable', message: expect.stringContaining('stay unchanged') },
  ]);
  expect(follower.received).toEqual([]);
  ipam.putNode(nodeMessage('n1', '192.0.2.1/24'));
  await ipam.start();
  await poll(() => follower.received.length).toBe(1);
  expect(messagesAt('warn')).toEqual([expect.stringContaining('has not answered yet')]);
});

test('an idle connection is closed and reopened', async () => {
  await ipam.start();
  // Longer than a busy machine needs for the first message.
  cluster = make({ idleTimeoutMs: 1500, slowStartMs: 750 });
  cluster.start();
  await poll(() => ipam.watchRequests.length).toBeGreaterThan(2);
  expect(ipam.watchRequests.slice(1).every(({ resumeToken }) => resumeToken !== '')).toBe(true);
  expect(lines.find(({ err }) => err)).toMatchObject({
    err: { message: expect.stringContaining('no message for 1500 ms') },
  });
});

test('an invalid object is logged and skipped, and the valid objects are applied', async () => {
  ipam.putPool(poolMessage('bad', 'nonsense'));
  ipam.putPool(poolMessage('good', '10.65.0.0/16'));
  await ipam.start();
  cluster.start();
  await poll(() => follower.received.length).toBe(1);
  expect(names(follower.last.view.cluster.pools)).toEqual(['good']);
  expect(messagesAt('error')).toEqual([expect.stringContaining('skipped pool bad')]);
  expect(cluster.conditions()).toMatchObject([{ reason: 'ObjectsSkipped' }]);
});

test('a follower that fails does not affect other followers', async () => {
  const failing: IpamFollower = { follow: () => expect.unreachable(), stop: () => Promise.resolve() };
  const other = new RecordingFollower();
  cluster = make({ followers: [failing, other] });
  await ipam.start();
  cluster.start();
  await poll(() => other.received.length).toBe(1);
  ipam.putNode(nodeMessage('n1', '192.0.2.1/24'));
  await poll(() => other.received.length).toBe(2);
  expect(messagesAt('error')).toHaveLength(2);
});

test('stopping ends the stream, and followers are not called again', async () => {
  await ipam.start();
  cluster.start();
  await poll(() => follower.received.length).toBe(1);
  await cluster.stop();
  await cluster.stop();
  await poll(() => ipam.streamsCount).toBe(0);
  ipam.putNode(nodeMessage('n1', '192.0.2.1/24'));
  expect(follower.received).toHaveLength(1);
  expect(messagesAt('warn')).toEqual([]);
});

/** A stream that receives a message before each of the first sleeps, where the test says so. */
async function run(heard: readonly boolean[]) {
  const clock = new FakeClock();
  let awaitedCount = 0;
  let sleeps = 0;
  clock.beforeSleep = () => {
    if (heard[sleeps++] === true) queueMicrotask(() => silence.restart());
  };
  const silence = new IdleTimeout({ clock, idleTimeoutMs: 100, slowStartMs: 10, onSlowStart: () => awaitedCount++ });
  await new Promise<void>((resolve) => silence.expired.addEventListener('abort', () => resolve()));
  const reason: unknown = silence.expired.reason;
  return { sleptMs: clock.sleepsMs, awaitedCount, reason };
}

test('a stream without a message is reported, and cancelled at the idle timeout', async () => {
  expect(await run([])).toMatchObject({ sleptMs: [10, 90], awaitedCount: 1, reason: { code: 'UNREACHABLE' } });
});

test('a stream with messages continues, and is not reported', async () => {
  const { sleptMs, awaitedCount } = await run([true, true, true]);
  expect(awaitedCount).toBe(0);
  expect(sleptMs.length).toBeGreaterThan(2);
});

test('a stream that ended is not cancelled', async () => {
  const clock = new FakeClock();
  const silence: IdleTimeout = new IdleTimeout({
    clock,
    idleTimeoutMs: 100,
    slowStartMs: 10,
    onSlowStart: () => silence.stop(),
  });
  await new Promise((resolve) => setImmediate(resolve));
  expect(silence.expired.aborted).toBe(false);
  expect(clock.sleepsMs).toEqual([10, 90]);
});
