import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { NodeServiceService, RoutingState } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type PodNetwork } from '@podwire/proto/podwire/dataplane/v1/pod';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { readConfig } from './config.js';
import { BOOT, recordingLog } from './dataplane.fixture.js';
import { HEALTH } from './health.fixture.js';
import { MemoryKernel } from './kernel/memory/memory-kernel.js';
import {
  addPod,
  cleanUp,
  nodeForwards,
  pings,
  requireThrowawayNamespace,
  run,
  snapshot,
} from './kernel/netlink/namespaces.fixture.js';
import { serve, startService, type RunningService } from './service.js';

/** Built by `npm run build`, which `npm test` does first. */
const MAIN = join(dirname(fileURLToPath(import.meta.url)), 'dist', 'main.js');

const limits = (timeoutMs = 30_000) => ({ deadlineMs: Date.now() + timeoutMs });

let folder: string;
let socket: string;
let peer: Peer;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-dataplane-'));
  socket = join(folder, 'run', 'dataplane.sock');
  peer = new Peer('podwire-dataplane', `unix:${socket}`);
});

afterEach(() => {
  peer.close();
  rmSync(folder, { recursive: true });
});

const env = () => ({
  PODWIRE_DATAPLANE_LISTEN: `unix:${socket}`,
  PODWIRE_DATAPLANE_STATE_DIRECTORY: join(folder, 'attachments'),
  PODWIRE_DATAPLANE_IPAM_ADDRESS: `unix:${join(folder, 'no-ipam.sock')}`,
});
const config = () => readConfig(env(), 'node-1');
const surroundings = () => ({ log: recordingLog().log, clock: systemClock, random: Math.random, boot: BOOT });

function podMessage(name: string, address: string): PodNetwork {
  const attachment = { network: 'net', containerId: name, interfaceName: 'eth0' };
  return {
    attachment,
    netns: `/run/netns/${name}`,
    hostInterfaceName: hostInterfaceName(attachment),
    macAddress: podMac(attachment),
    addresses: [`${address}/32`],
    routes: [],
    mtuBytes: 0,
    ipForwarding: true,
    sourcePrefixes: [],
    txQueueLength: 0,
    queueCount: 0,
  };
}

const attach = (pod: PodNetwork, timeoutMs?: number) =>
  peer.call(PodServiceService.attachPod, { pod }, limits(timeoutMs));
const detach = ({ attachment, hostInterfaceName: name }: PodNetwork) =>
  peer.call(PodServiceService.detachPod, { attachment, hostInterfaceName: name }, limits());
const check = (pod: PodNetwork) => peer.call(PodServiceService.checkPod, { pod }, limits());
const repair = (pod: PodNetwork | undefined) => peer.call(PodServiceService.repairPod, { pod }, limits());
const collect = (valid: readonly PodNetwork[] | undefined, network = '') => {
  const attachments = valid?.map(({ attachment }) => attachment!);
  const validAttachments = attachments && { attachments };
  return peer.call(PodServiceService.collectGarbage, { validAttachments, network }, limits());
};
const nodeStatus = () => peer.call(NodeServiceService.getNodeStatus, {}, limits());
const list = (pageSize: number, pageToken = '') =>
  peer.call(PodServiceService.listPods, { pageSize, pageToken }, limits());

describe('on the real kernel', () => {
  let service: RunningService;

  beforeEach(async () => {
    requireThrowawayNamespace();
    nodeForwards();
    service = await startService(config(), surroundings());
  });

  afterEach(async () => {
    await service.stop();
    cleanUp();
  });

  test('a second one on its socket is refused before it has touched what is the first one’s', async () => {
    const record = join(folder, 'attachments', 'spoilt.json');
    writeFileSync(record, '{');
    await expect(startService(config(), surroundings())).rejects.toMatchObject({
      code: 'INVALID_SETTINGS',
      message: expect.stringContaining('another process listens there'),
    });
    expect(existsSync(record)).toBe(true);
  });

  test('every method answers over the socket', async () => {
    addPod('a');
    addPod('b');
    const [a, b] = [podMessage('a', '10.65.0.7'), podMessage('b', '10.65.0.8')];
    expect(await attach(a)).toMatchObject({
      hostInterface: { name: a.hostInterfaceName, macAddress: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 },
      podInterface: { name: 'eth0', index: 2, macAddress: a.macAddress, mtuBytes: 1500 },
    });
    expect((await attach(b)).changes).toBeGreaterThan(0);
    expect((await attach(b)).changes).toBe(0);
    expect(pings('10.65.0.8', 'a')).toBe(true);
    expect(await check(a)).toEqual({ differences: [] });

    const first = await list(1);
    const second = await list(1, first.nextPageToken);
    expect(
      [...first.pods, ...second.pods]
        .map(({ attachment, addresses, up }) => [attachment?.containerId, addresses, up])
        .sort(),
    ).toEqual([
      ['a', ['10.65.0.7/32'], true],
      ['b', ['10.65.0.8/32'], true],
    ]);
    expect(second.nextPageToken).toBe('');

    expect([await detach(a), await detach(a), await detach(b)]).toEqual([
      { removed: true },
      { removed: false },
      { removed: true },
    ]);
    expect(await list(0)).toEqual({ pods: [], nextPageToken: '' });
    expect((await check(a)).differences[0]).toEqual({
      object: `host link ${a.hostInterfaceName}`,
      wanted: 'present',
      actual: 'missing',
    });
  });

  test('failures keep their code and their fields', async () => {
    await expect(attach({ ...podMessage('a', 'fd00::7'), netns: '' })).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'pod.netns' }, { field: 'pod.addresses[0]' }],
    });
    await expect(attach(podMessage('nowhere', '10.65.0.7'))).rejects.toMatchObject({ code: 'INVALID_NETNS' });
    await expect(list(1, 'nonsense')).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'page_token' }],
    });
    await expect(list(-1)).rejects.toMatchObject({ code: 'INVALID_REQUEST', violations: [{ field: 'page_size' }] });
  });

  test('CheckPod and RepairPod know by themselves what is wanted of an attachment that is recorded', async () => {
    addPod('a');
    const a = podMessage('a', '10.65.0.9');
    const recorded = a.attachment;
    const checkRecorded = () => peer.call(PodServiceService.checkPod, { pod: undefined, recorded }, limits());
    const repairRecorded = () => peer.call(PodServiceService.repairPod, { pod: undefined, recorded }, limits());
    for (const ask of [checkRecorded, repairRecorded])
      await expect(ask()).rejects.toMatchObject({ code: 'ATTACHMENT_NOT_FOUND' });
    await attach(a);
    expect(await checkRecorded()).toEqual({ differences: [] });
    const object = expect.stringContaining('default');
    const meddled = async (ask: typeof checkRecorded) => {
      run('ip', '-n', 'a', 'route', 'delete', 'default');
      return (await ask()).differences;
    };
    // The service's own look at its pods after the start may come first, and mend it.
    const missing = [expect.objectContaining({ object, wanted: 'present', actual: 'missing' })];
    await expect.poll(() => meddled(repairRecorded), { timeout: 30_000 }).toEqual(missing);
    await expect.poll(() => meddled(repairRecorded), { timeout: 30_000 }).toEqual(missing);
    expect(await checkRecorded()).toEqual({ differences: [] });
    const both = peer.call(PodServiceService.checkPod, { pod: a, recorded }, limits());
    await expect(both).rejects.toMatchObject({ code: 'INVALID_REQUEST', message: expect.stringContaining('recorded') });
  });

  test('RepairPod mends what it is told to, tells it, and then has nothing to mend', async () => {
    addPod('a');
    const a = podMessage('a', '10.65.0.7');
    await attach(a);
    const difference = { object: `host route 10.65.0.7 dev ${a.hostInterfaceName} proto 87 scope link` };
    const repairAfterMeddling = async () => {
      run('ip', 'route', 'delete', '10.65.0.7');
      return (await repair(a)).differences;
    };
    // The service's own look at its pods after the start may come first, and mend it.
    await expect
      .poll(repairAfterMeddling, { timeout: 30_000 })
      .toEqual([{ ...difference, wanted: 'present', actual: 'missing' }]);
    expect(await check(a)).toEqual({ differences: [] });
    expect(await repair(a)).toEqual({ differences: [] });
    const before = snapshot('a');
    await expect(repair(undefined)).rejects.toMatchObject({ code: 'INVALID_REQUEST', violations: [{ field: 'pod' }] });
    await expect(repair({ ...a, addresses: [], mtuBytes: 67 })).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'pod.addresses' }, { field: 'pod.mtu_bytes' }],
    });
    expect(snapshot('a')).toBe(before);
  });

  test('CollectGarbage takes an empty list at its word, and an absent one for a mistake', async () => {
    addPod('a');
    addPod('b');
    const [a, b] = [podMessage('a', '10.65.0.7'), podMessage('b', '10.65.0.8')];
    await attach(a);
    await attach(b);
    const faults = async (work: Promise<unknown>) => {
      const failure = await work.catch((error: unknown) => error);
      expect(failure).toMatchObject({ code: 'INVALID_REQUEST' });
      return failure;
    };
    const absent = await faults(collect(undefined));
    expect(absent).toMatchObject({ violations: [{ field: 'valid_attachments' }] });
    const malformed = await faults(collect([a, { ...b, attachment: { ...b.attachment!, containerId: '' } }], 'a b'));
    expect(malformed).toMatchObject({
      violations: [{ field: 'network' }, { field: 'valid_attachments.attachments[1].container_id' }],
    });
    expect((await list(0)).pods).toHaveLength(2);
    expect(await collect([], 'another-network')).toEqual({ removed: [], failures: [] });
    expect(await collect([b])).toEqual({ removed: [a.attachment], failures: [] });
    expect(await collect([])).toEqual({ removed: [b.attachment], failures: [] });
    expect(await list(0)).toEqual({ pods: [], nextPageToken: '' });
  });

  test('GetNodeStatus tells how the node is, also while IPAM is away', async () => {
    addPod('a');
    await attach(podMessage('a', '10.65.0.7'));
    const reasons = async () => (await nodeStatus()).conditions.map(({ reason }) => reason);
    await expect.poll(reasons, { timeout: 20_000 }).toContain('IpamUnreachable');
    expect(await nodeStatus()).toMatchObject({
      nodeName: 'node-1',
      ipv4Address: '',
      routing: 'native',
      tunnels: [],
      routingState: RoutingState.ROUTING_STATE_WAITING,
      wanted: undefined,
      present: undefined,
      checkedAt: undefined,
      driftCount: 0n,
      podMtuBytes: 1500,
      bgpSessions: [],
      attachmentCount: 1,
    });
  });

  test('settings that defeat pods are put right, or told with what they break', async () => {
    addPod('a');
    await attach({ ...podMessage('a', '10.65.0.7'), sourcePrefixes: ['10.99.0.0/24'] });
    await service.stop();
    run('sysctl', '-qw', 'net.ipv4.ip_forward=0', 'net.ipv4.conf.all.rp_filter=1');
    try {
      // It looks at them as it starts; later ones come after as many seconds as a test should not wait.
      service = await startService(config(), surroundings());
      const told = async () => (await nodeStatus()).conditions.map(({ reason }) => reason);
      await expect.poll(told, { timeout: 30_000 }).toContain('StrictReversePathFilter');
      await expect.poll(() => run('sysctl', '-n', 'net.ipv4.ip_forward'), { timeout: 30_000 }).toBe('1\n');
    } finally {
      run('sysctl', '-qw', 'net.ipv4.conf.all.rp_filter=0');
    }
  });

  test('the socket is its owner’s alone', () => {
    expect((statSync(socket).mode & 0o777).toString(8)).toBe('600');
    expect((statSync(dirname(socket)).mode & 0o777).toString(8)).toBe('700');
  });
});

describe('life and death', () => {
  const status = () => peer.call(HEALTH, null, limits());

  test('it is healthy only once the kernel is known to have what pods need', async () => {
    const kernel = new MemoryKernel();
    const probing = kernel.pauseBefore('probe');
    const starting = serve(kernel, { config: config(), surroundings: surroundings() });
    await probing.reached;
    expect(await status()).toBe(2);
    probing.release();
    const service = await starting;
    expect(await status()).toBe(1);
    await service.stop();
    expect(existsSync(socket)).toBe(false);
  });

  test('it does not start on a kernel without veth', async () => {
    const kernel = new MemoryKernel();
    kernel.failNext('probe', { errno: 'EOPNOTSUPP' });
    const starting = serve(kernel, { config: config(), surroundings: surroundings() });
    await expect(starting).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
    expect(kernel.unusedFaults).toBe(0);
  });

  test('it stops after what is under way is done', async () => {
    const kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    const service = await serve(kernel, { config: config(), surroundings: surroundings() });
    const pause = kernel.pauseBefore('route-add');
    const attaching = attach(podMessage('a', '10.65.0.7'));
    await pause.reached;
    const stopping = service.stop();
    pause.release();
    expect(await attaching).toMatchObject({ podInterface: { name: 'eth0' } });
    await stopping;
  });

  test('a call that is cut off at the end is undone before the kernel is let go', async () => {
    const kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    const before = kernel.print();
    const options = { config: { ...config(), drainTimeoutMs: 0 }, surroundings: surroundings() };
    const service = await serve(kernel, options);
    const pause = kernel.pauseBefore('link-add');
    const attaching = attach(podMessage('a', '10.65.0.7')).catch((failure: unknown) => failure);
    await pause.reached;
    const stopping = service.stop();
    expect(await attaching).toBeInstanceOf(Error);
    pause.release();
    await stopping;
    expect(kernel.print()).toBe(before);
  });
});

describe('SIGKILL in the middle of twenty attaches, then another start', () => {
  let child: ChildProcess;

  async function start(): Promise<void> {
    const settings = { PATH: process.env.PATH, PODWIRE_DATAPLANE_LOG_LEVEL: 'error', ...env() };
    peer.close();
    peer = new Peer('podwire-dataplane', `unix:${socket}`);
    child = spawn(process.execPath, [MAIN], { env: settings, stdio: ['ignore', 'ignore', 'inherit'] });
    await list(1);
  }

  async function end(signal: NodeJS.Signals): Promise<number | null> {
    const exited = once(child, 'exit');
    child.kill(signal);
    await exited;
    return child.exitCode;
  }

  beforeEach(() => {
    requireThrowawayNamespace();
    nodeForwards();
  });
  afterEach(cleanUp);

  // Chance decides where it strikes; how many answers it comes after, and that all agrees then, is attachments/crashes.kernel.test.ts.
  test.each([0, 6])(
    'after %i ms: every pod can be attached, checked and detached, and nothing is left',
    async (afterMs) => {
      const pods = Array.from({ length: 20 }, (_, at) => podMessage(`p${at}`, `10.65.0.${at + 1}`));
      const names = pods.map(({ attachment }) => attachment!.containerId);
      names.forEach(addPod);
      await start();
      const before = snapshot();
      const attaching = pods.map((pod) => attach(pod, 500).catch(() => undefined));
      await sleep(afterMs);
      await end('SIGKILL');
      await Promise.all(attaching);
      await start();

      await Promise.all(pods.map((pod) => attach(pod)));
      for (const pod of pods) expect(await check(pod)).toEqual({ differences: [] });
      expect(pings('10.65.0.1', 'p19')).toBe(true);
      expect(await Promise.all(pods.map(detach))).toEqual(pods.map(() => ({ removed: true })));
      expect(snapshot()).toBe(before);
      expect(await end('SIGTERM')).toBe(0);
    },
    120_000,
  );
});
