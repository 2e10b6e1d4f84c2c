import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { AddRequest, DelRequest } from '@podwire/proto/calico/cni/cnibackend';
import { PodNetwork, PodServiceService } from '@podwire/proto/podwire/dataplane/v1/pod';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import { LOCAL_CALLER } from '@podwire/shared/tls/caller';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { serve, type RunningService, type ServeOptions } from '../service.js';
import {
  addPod,
  cleanUp,
  setNodeForwarding,
  canPing,
  removePod,
  requireThrowawayNamespace,
  run,
  snapshot,
} from '../testing/kernels.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { BOOT, recordingLog, testRegistry } from '../testing/pods.js';
import {
  addRequest,
  CalicoPlugin,
  configOf,
  delRequest,
  openAddresses,
  startOn,
  type Fields,
} from '../testing/service.js';
import { tableOf } from '../wiring/network.js';
import { CNI_TIMEOUT_MS, cniAdd, cniDel, withTimeout } from './calico-cni-rpc.js';
import { Events } from './events.js';
import { PodWiring } from './pods.js';

let folder: string;
let peer: Peer;
let ipam: Peer;
let plugin: CalicoPlugin;
let service: RunningService;
let lines: Record<string, unknown>[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-cni-'));
  peer = new Peer('podwire-node', `unix:${folder}/dataplane.sock`);
  ipam = new Peer('podwire-ipam', `unix:${folder}/no-ipam.sock`);
  plugin = new CalicoPlugin(peer);
});

afterEach(async () => {
  peer.close();
  await service.stop();
  ipam.close();
  rmSync(folder, { recursive: true });
});

function options(): ServeOptions {
  const { log, lines: written } = recordingLog();
  lines = written;
  const env = {
    PODWIRE_NODE_LISTEN: `unix:${folder}/dataplane.sock`,
    PODWIRE_NODE_RECORDS_DIRECTORY: join(folder, 'attachments'),
  };
  return {
    config: configOf(env),
    deps: { log, clock: systemClock, random: Math.random, boot: BOOT, ipam, connectIpam: () => ipam, openAddresses },
  };
}

const GONE = { successful: true, errorMessage: '', hostInterfaceName: '', containerMac: '' };

describe('on the fake kernel', () => {
  let kernel: MemoryKernel;

  beforeEach(async () => {
    kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    kernel.addNamespace('/run/netns/b');
    service = await serve(kernel, options());
  });

  test.each<readonly [string, Fields, RegExp]>([
    ['no interface name', { 1: '' }, /^INVALID_REQUEST: .*interface_name is empty/],
    ['a namespace without a path', { 2: '' }, /^INVALID_REQUEST: .*netns is empty/],
    ['a namespace that is not there', { 2: '/run/netns/nothing' }, /^INVALID_NETNS: .*\/run\/netns\/nothing/],
    ['a host name that is too long', { 3: 'x'.repeat(16) }, /desired_host_interface_name is longer than 15 bytes/],
    ['an MTU that no link has', { 4: { 2: 12 } }, /settings\.mtu is 12/],
    ['a negative MTU', { 4: { 2: -1 } }, /settings\.mtu is -1/],
    ['no address', { 5: [] }, /container_ips is empty/],
    ['an address that is none', { 5: [{ 1: '10.65.0.300' }] }, /container_ips\[0\]\.address is "10\.65\.0\.300"/],
    ['a route that is none', { 6: ['::/0', '10.0.0.1/8'] }, /container_routes\[1\] is "10\.0\.0\.1\/8"/],
    [
      'a MAC address that is none',
      { 7: annotation('x') },
      /workload\.annotations\[cni\.projectcalico\.org\/hwAddr\] is "x"/,
    ],
  ])('Add with %s is refused in the reply, and changes nothing', async (_, change, message) => {
    const before = kernel.print();
    const reply = await plugin.add(addRequest('a', '10.65.0.7', change));
    expect(reply).toMatchObject({ successful: false, hostInterfaceName: '', containerMac: '' });
    expect(reply.errorMessage).toMatch(message);
    expect(kernel.print()).toBe(before);
    expect(lines).toContainEqual(expect.objectContaining({ rpc: 'cni.CniDataplane/Add', level: 'info' }));
  });

  test('all faults are reported at once', async () => {
    const { errorMessage } = await plugin.add({});
    for (const field of ['interface_name', 'netns', 'container_ips']) expect(errorMessage).toContain(field);
  });

  test('Del without an interface name is refused in the reply', async () => {
    expect(await plugin.del(delRequest('a', { 1: '' }))).toMatchObject({
      successful: false,
      errorMessage: expect.stringContaining('INVALID_REQUEST'),
    });
    expect(lines).toContainEqual(expect.objectContaining({ rpc: 'cni.CniDataplane/Del', level: 'info' }));
  });

  test('a repeated route counts once', async () => {
    const request = addRequest('a', '10.65.0.7', { 6: ['0.0.0.0/0', '10.9.0.0/16', '0.0.0.0/0', '10.9.0.0/16'] });
    expect((await plugin.add(request)).errorMessage).toBe('');
    const routes = kernel.namespace('/run/netns/a').routes.map(({ destination }) => destination);
    expect(routes).toEqual(['169.254.1.1/32', '0.0.0.0/0', '10.9.0.0/16']);
  });

  test('the host interface of a pod of Podwire’s own plugin is not replaced', async () => {
    const attachment = { network: 'net', containerId: 'own', interfaceName: 'eth0' };
    const names = { netns: '/run/netns/b', hostInterfaceName: 'shared', macAddress: '02:00:00:00:00:07' };
    const pod = PodNetwork.fromPartial({ attachment, ...names, addresses: ['10.65.0.8/32'] });
    await peer.call(PodServiceService.attachPod, { pod }, { deadlineMs: Date.now() + 30_000 });
    const before = kernel.print();
    expect(await plugin.add(addRequest('a', '10.65.0.7', { 3: 'shared' }))).toMatchObject({
      successful: false,
      errorMessage: expect.stringMatching(/^HOST_INTERFACE_TAKEN: /),
    });
    expect(kernel.print()).toBe(before);
  });

  test('a refusal of the kernel is reported, and rolled back', async () => {
    const before = kernel.print();
    kernel.failNext('route-add', { errno: 'EPERM' });
    expect(await plugin.add(addRequest('a', '10.65.0.7'))).toMatchObject({
      successful: false,
      errorMessage: expect.stringMatching(/^KERNEL_REFUSED: .*EPERM/),
    });
    expect(kernel.print()).toBe(before);
    expect(kernel.unusedFaults).toBe(0);
  });

  test('Del removes the routing rules of the interface from an unrecorded pod', async () => {
    const table = tableOf('net1');
    kernel.namespace('/run/netns/a').addRule({ source: '10.65.0.7/32', table, priority: 30_087, protocol: 87 });
    expect(await plugin.del(delRequest('a', { 1: 'net1' }))).toEqual(GONE);
    expect(kernel.namespace('/run/netns/a').rules).toEqual([]);
  });

  test('a late Del of an earlier sandbox does not affect the next one with its host interface name', async () => {
    expect(await plugin.add(addRequest('a', '10.65.0.7', { 3: 'shared' }))).toMatchObject({ successful: true });
    const later = await plugin.add(addRequest('b', '10.65.0.8', { 3: 'shared' }));
    expect(later).toMatchObject({ successful: true, hostInterfaceName: 'shared' });
    const before = kernel.print();
    expect(await plugin.del(delRequest('a'))).toEqual(GONE);
    expect(kernel.print()).toBe(before);
    expect(kernel.print()).toContain('10.65.0.8');
  });
});

function annotation(mac: string): Fields {
  return { 4: [{ 1: 'cni.projectcalico.org/hwAddr', 2: mac }] };
}

const NODE = ['192.0.2.1/32', '2001:db8::1/128'];

describe('on the real kernel', () => {
  beforeEach(async () => {
    requireThrowawayNamespace();
    for (const address of NODE) run('ip', 'address', 'add', address, 'dev', 'lo');
    setNodeForwarding();
    service = await startOn(options().config, options().deps);
  });

  afterEach(() => {
    for (const address of NODE) run('ip', 'address', 'delete', address, 'dev', 'lo');
    setNodeForwarding('off');
    cleanUp();
  });

  test('Add wires as requested and returns the result; Del leaves nothing', async () => {
    addPod('a');
    const before = snapshot();
    const reply = await plugin.add(addRequest('a', '10.65.0.7'));
    expect(reply).toMatchObject({ successful: true, errorMessage: '', hostInterfaceName: 'calia' });
    const inPod = (...args: readonly string[]) => JSON.parse(run('ip', '-n', 'a', '-j', ...args));
    expect(inPod('link', 'show', 'eth0')).toMatchObject([{ address: reply.containerMac, mtu: 1400 }]);
    expect(inPod('-4', 'address', 'show', 'eth0')).toMatchObject([
      { addr_info: [{ local: '10.65.0.7', prefixlen: 32 }] },
    ]);
    expect(inPod('route').map(({ dst }: { dst: string }) => dst)).toEqual(['default', '169.254.1.1']);
    expect(run('ip', 'netns', 'exec', 'a', 'sysctl', '-n', 'net.ipv4.ip_forward').trim()).toBe('1');
    expect(canPing('192.0.2.1', 'a')).toBe(true);
    expect(canPing('10.65.0.7')).toBe(true);

    const wired = snapshot('a');
    expect(await plugin.add(addRequest('a', '10.65.0.7'))).toEqual(reply);
    expect(snapshot('a')).toBe(wired);

    expect(await plugin.del(delRequest('a'))).toEqual(GONE);
    expect(snapshot()).toBe(before);
    expect(run('ip', '-n', 'a', '-br', 'link')).not.toContain('eth0');
    expect(await plugin.del(delRequest('a'))).toEqual(GONE);
  });

  test('IPv6 alone, a MAC address, no host name, no settings, no routes', async () => {
    addPod('a');
    const request = { 1: 'net1', 2: '/run/netns/a', 5: [{ 1: 'fd00:65::7' }], 7: annotation('02:00:00:00:00:07') };
    const reply = await plugin.add(request);
    expect(reply).toMatchObject({ successful: true, containerMac: '02:00:00:00:00:07' });
    expect(reply.hostInterfaceName).toMatch(/^podw[0-9a-f]{11}$/);
    expect(canPing('2001:db8::1', 'a')).toBe(true);
    const forwarding = ['sysctl', '-n', 'net.ipv6.conf.all.forwarding'];
    expect(run('ip', 'netns', 'exec', 'a', ...forwarding)).toBe('0\n');
    expect(await plugin.del(delRequest('a', { 1: 'net1' }))).toEqual(GONE);
  });

  test('two interfaces of a container are independent', async () => {
    addPod('a');
    const [one, other] = [
      addRequest('a', '10.65.0.7'),
      addRequest('a', '10.65.0.8', { 1: 'net1', 3: 'cali-net1', 6: ['10.9.0.0/16'] }),
    ];
    expect([(await plugin.add(one)).errorMessage, (await plugin.add(other)).errorMessage]).toEqual(['', '']);
    expect(await plugin.del(delRequest('a', { 1: 'net1' }))).toEqual(GONE);
    expect(canPing('10.65.0.7')).toBe(true);
    expect(canPing('10.65.0.8')).toBe(false);
  });

  test('Del removes the host end when the namespace is gone, never existed, or has no path', async () => {
    addPod('a');
    const before = snapshot();
    await plugin.add(addRequest('a', '10.65.0.7'));
    // The namespace and its interfaces outlive its path while a process holds it.
    const holder = Number(run('sh', '-c', 'ip netns exec a sleep 600 > /dev/null 2>&1 & echo $!'));
    removePod('a');
    expect(run('ip', '-br', 'link')).toContain('calia');
    expect(await plugin.del(delRequest('a', { 2: '' }))).toEqual(GONE);
    expect(run('ip', '-br', 'link')).toContain('calia');
    expect(await plugin.del(delRequest('a'))).toEqual(GONE);
    expect(run('ip', '-br', 'link')).not.toContain('calia');
    expect(await plugin.del(delRequest('never'))).toEqual(GONE);
    expect(snapshot()).toBe(before);
    process.kill(holder);
  });

  test('Del finds an unrecorded wire by its alias', async () => {
    addPod('a');
    const before = snapshot();
    await plugin.add(addRequest('a', '10.65.0.7'));
    await service.stop();
    rmSync(join(folder, 'attachments'), { recursive: true });
    service = await startOn(options().config, options().deps);
    expect(await plugin.del(delRequest('a'))).toEqual(GONE);
    expect(snapshot()).toBe(before);
  });

  test('the next sandbox of a pod replaces the host interface of the previous one, but no foreign one', async () => {
    for (const name of ['a', 'b', 'c']) addPod(name);
    expect((await plugin.add(addRequest('a', '10.65.0.7', { 3: 'calipod' }))).errorMessage).toBe('');
    expect((await plugin.add(addRequest('b', '10.65.0.7', { 3: 'calipod' }))).errorMessage).toBe('');
    expect(canPing('10.65.0.7')).toBe(true);
    expect(run('ip', '-n', 'a', '-br', 'link')).not.toContain('eth0');
    run('ip', 'link', 'add', 'calic', 'type', 'bridge');
    const refusal = await plugin.add(addRequest('c', '10.65.0.9'));
    expect(refusal).toMatchObject({
      successful: false,
      errorMessage: expect.stringMatching(/^HOST_INTERFACE_TAKEN: /),
    });
    expect(run('ip', '-br', 'link', 'show', 'type', 'bridge')).toContain('calic');
  });

  test('many concurrent calls, each twice, leave nothing', async () => {
    const names = Array.from({ length: 8 }, (_, at) => `p${at}`);
    names.forEach(addPod);
    const before = snapshot();
    const both = <Answer>(call: (name: string, at: number) => Promise<Answer>) =>
      Promise.all([...names.entries(), ...names.entries()].map(([at, name]) => call(name, at)));
    const added = await both((name, at) => plugin.add(addRequest(name, `10.65.0.${at + 1}`)));
    expect(added.map(({ errorMessage }) => errorMessage).filter(Boolean)).toEqual([]);
    expect(canPing('10.65.0.8', 'p0')).toBe(true);
    expect(await both((name) => plugin.del(delRequest(name)))).toEqual([...names, ...names].map(() => GONE));
    expect(snapshot()).toBe(before);
  });
});

/** Work that runs until its signal fires. */
const endless = async (signal: AbortSignal): Promise<void> => {
  await new Promise((resolve) => {
    signal.addEventListener('abort', resolve);
  });
  signal.throwIfAborted();
};

test('the timeout is the five seconds of Calico’s plugin', () => {
  expect(CNI_TIMEOUT_MS).toBe(5000);
});

test('work that exceeds the timeout is aborted with a reason', async () => {
  await expect(withTimeout(new AbortController().signal, endless, 20)).rejects.toMatchObject({
    code: 'DEADLINE_EXCEEDED',
    message: 'no answer within 20 ms',
  });
});

test('a caller that cancels earlier aborts the work', async () => {
  const caller = new AbortController();
  const work = withTimeout(caller.signal, endless);
  caller.abort(new Failure('CANCELLED', 'the caller gave up'));
  await expect(work).rejects.toMatchObject({ code: 'CANCELLED' });
});

test('work within the timeout is not aborted', async () => {
  let seen: AbortSignal | undefined;
  const work = (signal: AbortSignal) => {
    seen = signal;
    return Promise.resolve('done');
  };
  expect(await withTimeout(new AbortController().signal, work, 1)).toBe('done');
  await new Promise((resolve) => setTimeout(resolve, 5));
  expect(seen?.aborted).toBe(false);
});

describe('a method whose caller has a longer deadline', () => {
  afterEach(() => void vi.useRealTimers());

  const place = { interfaceName: 'eth0', netns: '/run/netns/a' };
  const add = AddRequest.fromPartial({ ...place, containerIps: [{ address: '10.65.0.7/32' }] });

  test.each(['Add', 'Del'] as const)('%s still answers after five seconds', async (method) => {
    const kernel = new MemoryKernel();
    kernel.addNamespace(place.netns);
    const dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
    const parts = { dataplane, refused: () => undefined };
    const call = () => ({ signal: new AbortController().signal, caller: LOCAL_CALLER });
    const pause = kernel.pauseBefore('link-add');
    const first = cniAdd(parts)(add, call());
    await pause.reached;

    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const second = method === 'Add' ? cniAdd(parts)(add, call()) : cniDel(parts)(DelRequest.fromPartial(place), call());
    await vi.advanceTimersByTimeAsync(CNI_TIMEOUT_MS);
    expect(await second).toMatchObject({
      successful: false,
      errorMessage: expect.stringMatching(/^DEADLINE_EXCEEDED: .*5000 ms/),
    });
    pause.release();
    expect(await first).toMatchObject({ successful: true });
  });
});
