import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { FakeClock } from '../testing/clock.js';
import { acquireExclusive } from './exclusive.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-sole-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

interface Choice {
  readonly state?: string;
  readonly socket?: string;
  readonly clock?: FakeClock;
  readonly owner?: string;
  readonly signal?: AbortSignal;
  readonly onWait?: (message: string) => void;
  readonly onUnlockable?: (failure: Failure) => void;
}

const take = ({
  state = 'state',
  socket = 'run/dataplane.sock',
  clock = new FakeClock(),
  owner = '1',
  onUnlockable,
  ...rest
}: Choice = {}) =>
  acquireExclusive({
    program: 'podwire-node',
    settings: 'PODWIRE_NODE_LISTEN and PODWIRE_NODE_RECORDS_DIRECTORY',
    ...rest,
    directories: [{ path: join(folder, state), ...(onUnlockable && { onUnlockable }) }],
    addresses: [`unix:${join(folder, socket)}`, '127.0.0.1:0'],
    owner,
    clock,
  });

/** A clock whose sleeps take seconds longer, as on a busy machine. */
class SlowClock extends FakeClock {
  override sleep(durationMs: number, signal: AbortSignal): Promise<'elapsed' | 'aborted'> {
    return super.sleep(durationMs + 4_900, signal);
  }
}

test('records and socket belong to one process until it releases them', async () => {
  const first = await take({ owner: '4711' });
  const clock = new SlowClock(0);
  const told: string[] = [];
  await expect(take({ clock, onWait: (message) => void told.push(message) })).rejects.toMatchObject({
    code: 'INVALID_SETTINGS',
    message: expect.stringMatching(
      /another podwire-node \(process 4711\) uses .*state: stop it first, or set PODWIRE_NODE_LISTEN and /,
    ),
  });
  // More than the longest stop of a process takes, as it may be stopping.
  expect(clock.nowMs()).toBe(130_000);
  expect(told).toEqual([`another podwire-node (process 4711) uses ${join(folder, 'state')}: waiting until it ends`]);
  first.release();
  const second = await take();
  second.release();
});

test('a waiting process that is stopped ends', async () => {
  const first = await take();
  const stopped = new AbortController();
  const onWait = () => stopped.abort(new Failure('CANCELLED', 'the end'));
  await expect(take({ signal: stopped.signal, onWait })).rejects.toThrow('the end');
  first.release();
});

test('neither the records of another socket nor a used socket are taken, and earlier locks are released', async () => {
  const first = await take();
  await expect(take({ socket: 'run/other.sock' })).rejects.toMatchObject({ code: 'INVALID_SETTINGS' });
  await expect(take({ state: 'other' })).rejects.toMatchObject({
    message: expect.stringContaining(`uses ${join(folder, 'run')}: `),
  });
  const beside = await take({ state: 'other', socket: 'run/other.sock' });
  beside.release();
  first.release();
});

test('a successor takes over once its predecessor has ended; a foreign listener is refused', async () => {
  const first = await take();
  const clock = new FakeClock();
  clock.beforeSleep = () => first.release();
  const second = await take({ clock });
  expect(clock.sleepsMs).toEqual([100]);
  second.release();

  const server = createServer();
  const listening = new FakeClock();
  await new Promise<void>((resolve) => server.listen(join(folder, 'run/dataplane.sock'), resolve));
  await expect(take({ clock: listening })).rejects.toMatchObject({
    message: expect.stringContaining('another process listens there'),
  });
  // The kernel may close the locks of a killed process before its sockets.
  expect(listening.sleepsMs).toEqual([10, 40, 150]);
  await new Promise((resolve) => server.close(resolve));
  const third = await take();
  third.release();
});

test('a successor waits for a predecessor that serves', async () => {
  const first = await take({ owner: '4711' });
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(join(folder, 'run/dataplane.sock'), resolve));
  const told: string[] = [];
  const clock = new FakeClock();
  const ended = new Promise<void>((resolve) => {
    clock.beforeSleep = () => {
      if (told.length > 0) server.close(() => resolve());
      first.release();
    };
  });
  const second = await take({ clock, onWait: (message) => void told.push(message) });
  await ended;
  expect(told).toEqual([expect.stringContaining('(process 4711) uses')]);
  second.release();
});

test('directories that cannot be created are reported', async () => {
  await expect(take({ state: '\0' })).rejects.toMatchObject({
    code: 'STATE_IO',
    message: expect.stringMatching(/^cannot lock .*: grant this process write access, or set PODWIRE_/),
  });
  expect(existsSync(join(folder, 'state'))).toBe(false);
});

test('a state directory that cannot be locked does not prevent a start; the socket still has one owner', async () => {
  writeFileSync(join(folder, 'file'), '');
  const told: string[] = [];
  const onUnlockable = ({ code, message }: Failure) => void told.push(`${code} ${message}`);
  const first = await take({ state: 'file', onUnlockable });
  expect(told).toEqual([expect.stringMatching(/^STATE_IO cannot lock .*file \(/)]);
  await expect(take({ state: 'file', onUnlockable })).rejects.toMatchObject({ code: 'INVALID_SETTINGS' });
  first.release();
  await expect(take({ socket: 'file/no.sock', onUnlockable })).rejects.toMatchObject({ code: 'INVALID_SETTINGS' });
});
