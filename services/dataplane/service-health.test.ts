import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { FakeNodeNetwork } from './cluster/node-network.fixture.js';
import { readConfig } from './config.js';
import { BOOT, recordingLog } from './dataplane.fixture.js';
import { HEALTH } from './health.fixture.js';
import { MemoryKernel } from './kernel/memory/memory-kernel.js';
import { MemoryLinks } from './kernel/memory/memory-links.js';
import { MemoryNodeKernel } from './kernel/memory/node-memory-kernel.js';
import { MemoryNft } from './kernel/nft/memory/memory-nft.js';
import { serve, type RunningService } from './service.js';

/** What the whole service says of how it is, in front of kernels that fail. */

const AT_ONCE = { timeout: 20_000, interval: 20 };

/** Time as it is, but for pauses, of which a test has no patience. */
const impatientClock: Clock = {
  nowMs: () => systemClock.nowMs(),
  sleep: (durationMs, signal) => systemClock.sleep(Math.min(durationMs, 200), signal),
};

let folder: string;
let peer: Peer;
let kernel: MemoryKernel;
let nft: MemoryNft;
let service: RunningService | undefined;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-service-health-'));
  peer = new Peer('podwire-dataplane', `unix:${join(folder, 'dataplane.sock')}`);
  kernel = new MemoryKernel();
  nft = new MemoryNft();
});

afterEach(async () => {
  await service?.stop();
  peer.close();
  rmSync(folder, { recursive: true });
});

async function start(): Promise<void> {
  const env = {
    PODWIRE_DATAPLANE_LISTEN: `unix:${join(folder, 'dataplane.sock')}`,
    PODWIRE_DATAPLANE_STATE_DIRECTORY: join(folder, 'attachments'),
    PODWIRE_DATAPLANE_IPAM_ADDRESS: `unix:${join(folder, 'no-ipam.sock')}`,
  };
  const network = new FakeNodeNetwork({ eth0: ['192.0.2.7/24'] });
  const nodeSide = { network, kernel: new MemoryNodeKernel(), links: new MemoryLinks(), nft, peerPlan: undefined };
  const surroundings = { log: recordingLog().log, clock: impatientClock, random: Math.random, boot: BOOT };
  service = await serve(kernel, { config: readConfig(env, 'node-1'), surroundings, nodeSide });
}

const limits = () => ({ deadlineMs: Date.now() + 30_000 });
const health = () => peer.call(HEALTH, null, limits());
const reasons = async () => {
  const { conditions } = await peer.call(NodeServiceService.getNodeStatus, {}, limits());
  return conditions.map(({ reason }) => reason);
};

test('a kernel that can wire no pod any more is told, and health with it, until it can again', async () => {
  // The first is that of the start.
  for (let look = 0; look < 8; look++) kernel.failNext('probe', { errno: 'EMFILE', after: look === 0 ? 1 : 0 });
  await start();
  await expect.poll(health, AT_ONCE).toBe(2);
  expect(await reasons()).toContain('KernelUnusable');
  await expect.poll(health, AT_ONCE).toBe(1);
  await expect.poll(reasons, AT_ONCE).not.toContain('KernelUnusable');
  expect(kernel.unusedFaults).toBe(0);
});

test('a guard that cannot be had is told as long as that is so; pods of IPv4 are served all the same', async () => {
  for (let attempt = 0; attempt < 10; attempt++) {
    nft.failNext('apply', new Failure('KERNEL_UNSUPPORTED', 'nft cannot be run: install it'));
  }
  await start();
  await expect.poll(reasons, AT_ONCE).toContain('SourceGuardUnavailable');
  expect(await health()).toBe(1);
  await expect.poll(reasons, AT_ONCE).not.toContain('SourceGuardUnavailable');
  expect(nft.unusedFaults).toBe(0);
});
