import { statSync } from 'node:fs';
import { dirname } from 'node:path';

import { RoutingState } from '@podwire/proto/podwire/dataplane/v1/node';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { RunningService } from './service.js';
import {
  addPod,
  cleanUp,
  setNodeForwarding,
  canPing,
  requireThrowawayNamespace,
  run,
  snapshot,
} from './testing/kernels.js';
import { podMessage, ServiceFixture, startOn } from './testing/service.js';

let bench: ServiceFixture;

beforeEach(() => {
  bench = new ServiceFixture();
});
afterEach(() => bench.clear());

describe('on the real kernel', () => {
  let service: RunningService;

  beforeEach(async () => {
    requireThrowawayNamespace();
    setNodeForwarding();
    service = await startOn(bench.config(), bench.deps());
  });

  afterEach(async () => {
    await service.stop();
    cleanUp();
  });

  test('every method answers over the socket', async () => {
    addPod('a');
    addPod('b');
    const [a, b] = [podMessage('a', '10.65.0.7'), podMessage('b', '10.65.0.8')];
    expect(await bench.attach(a)).toMatchObject({
      hostInterface: { name: a.hostInterfaceName, macAddress: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 },
      podInterface: { name: 'eth0', index: 2, macAddress: a.macAddress, mtuBytes: 1500 },
    });
    expect((await bench.attach(b)).changes).toBeGreaterThan(0);
    expect((await bench.attach(b)).changes).toBe(0);
    expect(canPing('10.65.0.8', 'a')).toBe(true);
    expect(await bench.check(a)).toMatchObject({ differences: [] });

    const first = await bench.list(1);
    const second = await bench.list(1, first.nextPageToken);
    expect(
      [...first.pods, ...second.pods]
        .map(({ attachment, addresses, up }) => [attachment?.containerId, addresses, up])
        .sort(),
    ).toEqual([
      ['a', ['10.65.0.7/32'], true],
      ['b', ['10.65.0.8/32'], true],
    ]);
    expect(second.nextPageToken).toBe('');

    expect([await bench.detach(a), await bench.detach(a), await bench.detach(b)]).toEqual([
      { removed: true },
      { removed: false },
      { removed: true },
    ]);
    expect(await bench.list(0)).toEqual({ pods: [], nextPageToken: '' });
    expect((await bench.check(a)).differences[0]).toEqual({
      object: `host link ${a.hostInterfaceName}`,
      wanted: 'present',
      actual: 'missing',
    });
  });

  test('failures keep their code and their fields', async () => {
    await expect(bench.attach({ ...podMessage('a', 'fd00::7'), netns: '' })).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'pod.addresses[0]' }, { field: 'pod.netns' }],
    });
    await expect(bench.attach(podMessage('nowhere', '10.65.0.7'))).rejects.toMatchObject({ code: 'INVALID_NETNS' });
    await expect(bench.list(1, 'nonsense')).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'page_token' }],
    });
    await expect(bench.list(-1)).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'page_size' }],
    });
  });

  test('CheckPod and RepairPod read the wanted state of a recorded attachment', async () => {
    addPod('a');
    const a = podMessage('a', '10.65.0.9');
    const recorded = a.attachment;
    const checkRecorded = () => bench.check(undefined, recorded);
    const repairRecorded = () => bench.repair(undefined, recorded);
    for (const ask of [checkRecorded, repairRecorded])
      await expect(ask()).rejects.toMatchObject({ code: 'ATTACHMENT_NOT_FOUND' });
    await bench.attach(a);
    expect(await checkRecorded()).toMatchObject({ differences: [] });
    const object = expect.stringContaining('default');
    const meddled = async (ask: typeof checkRecorded) => {
      run('ip', '-n', 'a', 'route', 'delete', 'default');
      return (await ask()).differences;
    };
    // The service's own check after the start may repair it first.
    const missing = [expect.objectContaining({ object, wanted: 'present', actual: 'missing' })];
    await expect.poll(() => meddled(repairRecorded), { timeout: 30_000 }).toEqual(missing);
    await expect.poll(() => meddled(repairRecorded), { timeout: 30_000 }).toEqual(missing);
    expect(await checkRecorded()).toMatchObject({ differences: [] });
    const both = bench.check(a, recorded);
    await expect(both).rejects.toMatchObject({ code: 'INVALID_REQUEST', message: expect.stringContaining('recorded') });
  });

  test('RepairPod repairs a pod, reports the differences, and then finds none', async () => {
    addPod('a');
    const a = podMessage('a', '10.65.0.7');
    await bench.attach(a);
    const difference = { object: `host route 10.65.0.7 dev ${a.hostInterfaceName} proto 87 scope link` };
    const repairAfterMeddling = async () => {
      run('ip', 'route', 'delete', '10.65.0.7');
      return (await bench.repair(a)).differences;
    };
    // The service's own check after the start may repair it first.
    await expect
      .poll(repairAfterMeddling, { timeout: 30_000 })
      .toEqual([{ ...difference, wanted: 'present', actual: 'missing' }]);
    expect(await bench.check(a)).toMatchObject({ differences: [] });
    expect(await bench.repair(a)).toMatchObject({ differences: [] });
    const before = snapshot('a');
    await expect(bench.repair(undefined)).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'pod' }],
    });
    await expect(bench.repair({ ...a, addresses: [], mtuBytes: 67 })).rejects.toMatchObject({
      code: 'INVALID_REQUEST',
      violations: [{ field: 'pod.addresses' }, { field: 'pod.mtu_bytes' }],
    });
    expect(snapshot('a')).toBe(before);
  });

  test('GetNodeStatus reports the node’s state, also while IPAM is unreachable', async () => {
    addPod('a');
    await bench.attach(podMessage('a', '10.65.0.7'));
    const reasons = async () => (await bench.nodeStatus()).conditions.map(({ reason }) => reason);
    await expect.poll(reasons, { timeout: 20_000 }).toContain('IpamUnreachable');
    expect(await bench.nodeStatus()).toMatchObject({
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

  test('settings that break pods are repaired, or reported with their effect', async () => {
    addPod('a');
    await bench.attach({ ...podMessage('a', '10.65.0.7'), sourcePrefixes: ['10.99.0.0/24'] });
    await service.stop();
    run('sysctl', '-qw', 'net.ipv4.ip_forward=0', 'net.ipv4.conf.all.rp_filter=1');
    try {
      // The first check runs at the start; a test should not wait for later ones.
      service = await startOn(bench.config(), bench.deps());
      const reasons = async () => (await bench.nodeStatus()).conditions.map(({ reason }) => reason);
      await expect.poll(reasons, { timeout: 30_000 }).toContain('StrictReversePathFilter');
      await expect.poll(() => run('sysctl', '-n', 'net.ipv4.ip_forward'), { timeout: 30_000 }).toBe('1\n');
    } finally {
      run('sysctl', '-qw', 'net.ipv4.conf.all.rp_filter=0');
    }
  });

  test('only its owner can connect to the socket', () => {
    expect((statSync(bench.socket).mode & 0o777).toString(8)).toBe('600');
    expect((statSync(dirname(bench.socket)).mode & 0o777).toString(8)).toBe('700');
  });
});
