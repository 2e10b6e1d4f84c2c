import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { ReadyLease } from './readiness-record.js';

let folder: string;
let path: string;
let clock: ManualClock;
let isReady: boolean;
let lease: ReadyLease;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-lease-'));
  path = join(folder, 'node-ready');
  clock = new ManualClock();
  isReady = true;
  lease = new ReadyLease({ path, isReady: () => isReady, clock });
});

afterEach(async () => {
  await lease.stop();
  rmSync(folder, { recursive: true });
});

const aheadMs = () => Math.round(statSync(path).mtimeMs - clock.nowMs());

async function paused(): Promise<void> {
  await vi.waitFor(() => expect(clock.sleeping).toBe(1), { interval: 1, timeout: 20_000 });
}

test('the lease lasts half a minute while the node is ready, is renewed, and outlives the process', async () => {
  writeFileSync(path, '');
  lease.start();
  await paused();
  expect(aheadMs()).toBe(30_000);
  clock.advance(5000);
  await paused();
  expect(aheadMs()).toBe(30_000);
  await lease.stop();
  expect(aheadMs()).toBe(30_000);
});

test('a node that is not ready has no lease, and one that never was ready has no file', async () => {
  lease.start();
  await paused();
  expect(() => statSync(path)).toThrow('ENOENT');
  writeFileSync(path, '');
  isReady = false;
  clock.advance(5000);
  await paused();
  expect(aheadMs()).toBe(0);
});
