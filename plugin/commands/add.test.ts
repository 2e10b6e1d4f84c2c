import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NOTHING, Plugin } from '../testing/plugin.js';

const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const SUBJECT = 'net/c0ffee/eth0';
const HOST = hostInterfaceName(ATTACHMENT);
const MAC = podMac(ATTACHMENT);
const HELD = [
  `net.c0ffee 10.65.0.0/32 ${MAC} ${HOST} default/web-0/u-1@node-1 netns 4026532001`,
  '--',
  `${HOST} -> eth0@/run/netns/pod ${MAC} 10.65.0.0/32 mtu 0 forwarding false`,
].join('\n');

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin().start();
});

afterEach(async () => {
  await plugin.end();
  expect(plugin.script.unusedFaults()).toEqual([]);
});

const calls = () => plugin.script.calls.map((call) => call.replace(` ${SUBJECT}`, ''));

async function failed(adding = plugin.run('ADD')): Promise<{ code: number; msg: string; details: string }> {
  const answer = await adding;
  expect(answer.exitCode).toBe(1);
  return JSON.parse(answer.stdout);
}

describe('ADD', () => {
  test('makes one call to IPAM and one to the dataplane', async () => {
    const answer = await plugin.run('ADD');
    expect(answer.exitCode).toBe(0);
    expect(JSON.parse(answer.stdout)).toEqual({
      cniVersion: '1.0.0',
      interfaces: [
        { name: HOST, mac: 'ee:ee:ee:ee:ee:ee' },
        { name: 'eth0', mac: MAC, sandbox: '/run/netns/pod' },
      ],
      ips: [{ interface: 1, address: '10.65.0.0/32' }],
      routes: [{ dst: '10.65.0.0/32' }],
    });
    expect(plugin.script.calls).toEqual([`Allocate ${SUBJECT}`, `AttachPod ${SUBJECT}`]);
    expect(plugin.state()).toBe(HELD);
  });

  test('passes the settings of the configuration on', async () => {
    const config = { mtu: 1400, nodename: 'node-9', container_settings: { allow_ip_forwarding: true } };
    expect((await plugin.run('ADD', { config })).exitCode).toBe(0);
    expect(plugin.state()).toMatch(/@node-9 .*mtu 1400 forwarding true$/s);
  });

  test('works without Kubernetes', async () => {
    expect((await plugin.run('ADD', { variables: { CNI_ARGS: '' } })).exitCode).toBe(0);
    expect(plugin.state()).toContain(' -@node-1');
  });

  test('repeated, returns the same result and changes nothing', async () => {
    const first = await plugin.run('ADD');
    expect(await plugin.run('ADD')).toEqual(first);
    expect(plugin.state()).toBe(HELD);
  });

  test('called three times at once, allocates one address', async () => {
    const answers = await Promise.all([plugin.run('ADD'), plugin.run('ADD'), plugin.run('ADD')]);
    expect(new Set(answers.map(({ stdout }) => stdout)).size).toBe(1);
    expect(answers.map(({ exitCode }) => exitCode)).toEqual([0, 0, 0]);
    expect(plugin.state()).toBe(HELD);
  });
});

describe('ADD retries transient failures', () => {
  test('Allocate that failed before its effect', async () => {
    plugin.script.failNext('Allocate', new Failure('CONFLICT', 'lost a race'));
    expect((await plugin.run('ADD')).exitCode).toBe(0);
    expect(plugin.state()).toBe(HELD);
  });

  test('Allocate whose answer was lost', async () => {
    plugin.script.failNext('Allocate', new Failure('UNREACHABLE', 'connection lost'), { afterWork: true });
    expect((await plugin.run('ADD')).exitCode).toBe(0);
    expect(plugin.state()).toBe(HELD);
  });

  test('of a service that becomes reachable in time', async () => {
    await plugin.stopServices();
    const adding = plugin.run('ADD');
    await plugin.start();
    expect((await adding).exitCode).toBe(0);
  });
});

describe('ADD that fails leaves nothing', () => {
  const refusal = new Failure('KERNEL_REFUSED', 'link add: EPERM');

  test('when IPAM refuses', async () => {
    plugin.script.failNext('Allocate', new Failure('POOLS_EXHAUSTED', 'pool a: full'));
    expect(await failed()).toMatchObject({ code: 11, msg: 'pool a: full' });
    expect(calls()).toEqual(['Allocate', 'GetPod', 'Release']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when the datastore is locked by Calico’s tools: at once, with a retryable code', async () => {
    plugin.script.failNext('Allocate', new Failure('STORE_LOCKED', 'the datastore is locked'));
    expect(await failed()).toMatchObject({ code: 11, msg: 'the datastore is locked' });
    expect(calls()).toEqual(['Allocate', 'GetPod', 'Release']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when IPAM allocated and then failed', async () => {
    plugin.script.failNext('Allocate', new Failure('STORE_CORRUPT', 'bad record'), { afterWork: true });
    expect(await failed()).toMatchObject({ code: 100, msg: 'bad record' });
    expect(calls()).toEqual(['Allocate', 'GetPod', 'Release']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test.each([false, true])('when the dataplane refuses (after its effect: %s)', async (afterWork) => {
    plugin.script.failNext('AttachPod', refusal, { afterWork });
    expect(await failed()).toMatchObject({ code: 101, msg: refusal.message });
    expect(calls()).toEqual(['Allocate', 'AttachPod', 'DetachPod', 'ReleaseAddresses']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when the pod already has an interface of that name', async () => {
    plugin.dataplane.addForeignInterface('/run/netns/pod', 'eth0');
    expect(await failed()).toMatchObject({ code: 101, msg: expect.stringContaining('eth0') });
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when the host interface belongs to another owner, which keeps it', async () => {
    plugin.script.failNext('AttachPod', new Failure('HOST_INTERFACE_TAKEN', `${HOST} is in use`));
    expect(await failed()).toMatchObject({ code: 101, msg: `${HOST} is in use` });
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when a service has a defect, whose detail is not disclosed', async () => {
    plugin.script.failNext('AttachPod', new TypeError('undefined is secret'));
    const error = await failed();
    expect(error).toMatchObject({ code: 999 });
    expect(error.msg).not.toContain('secret');
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when its caller disconnects while IPAM works, which may allocate after that', async () => {
    const cancel = new AbortController();
    plugin.script.hold('Allocate');
    const adding = plugin.run('ADD', { rest: { cancel } });
    await plugin.script.untilCalled('Allocate');
    cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
    expect(await failed(adding)).toMatchObject({ code: 11 });
    // An empty state does not exclude a request in flight; an answered release does.
    expect(calls()).toEqual(['Allocate', 'GetPod', 'Release']);
  });

  test('when its caller disconnects', async () => {
    const cancel = new AbortController();
    const letGo = plugin.script.hold('AttachPod');
    const adding = plugin.run('ADD', { rest: { cancel } });
    await plugin.script.untilCalled('AttachPod');
    cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
    expect(await failed(adding)).toMatchObject({ code: 11, msg: 'the caller disconnected' });
    letGo();
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when its caller disconnects as the dataplane answers', async () => {
    const cancel = new AbortController();
    await plugin.end();
    plugin = await new Plugin({
      wrap: (dataplane) => ({
        ...dataplane,
        attachPod: async (...args) => {
          const wire = await dataplane.attachPod(...args);
          cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
          return wire;
        },
      }),
    }).start();
    expect(await failed(plugin.run('ADD', { rest: { cancel } }))).toMatchObject({ code: 11 });
    expect(calls()).toEqual(['Allocate', 'AttachPod', 'DetachPod', 'ReleaseAddresses']);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('when its caller disconnected before it began', async () => {
    const cancel = new AbortController();
    cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
    expect(await failed(plugin.run('ADD', { rest: { cancel } }))).toMatchObject({ code: 11 });
    expect(calls()).toEqual([]);
  });

  test.each([
    ['DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY')],
    ['ReleaseAddresses', new Failure('STORE_CORRUPT', 'bad record')],
  ] as const)('later, when %s is refused, with a log line', async (method, rest) => {
    plugin.script.failNext('AttachPod', refusal, { afterWork: true });
    plugin.script.failNext(method, rest);
    const error = await failed();
    expect(error).toMatchObject({ code: 101 });
    expect(error.msg).toMatch(new RegExp(`^link add: EPERM; .*pending on this node.*${rest.message}`));
    expect(plugin.ipam.toString()).toContain('10.65.0.0/32');
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
  });
});

test('ADD reports a reason once, also when it fails the undoing too', async () => {
  const refusal = new Failure('KERNEL_REFUSED', 'netlink: ENOBUFS');
  plugin.script.failNext('AttachPod', refusal, { afterWork: true });
  plugin.script.failNext('DetachPod', refusal);
  expect((await failed()).msg).toBe(
    'netlink: ENOBUFS; the rollback failed for the same reason and is pending on this node',
  );
  await plugin.replayed();
  expect(plugin.state()).toBe(NOTHING);
});

describe('a failed ADD keeps what an earlier ADD of the attachment holds', () => {
  beforeEach(async () => {
    expect((await plugin.run('ADD')).exitCode).toBe(0);
    plugin.script.calls.length = 0;
  });

  test('when the dataplane refuses', async () => {
    plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'sysctl: EROFS'));
    expect(await failed()).toMatchObject({ code: 101 });
    expect(calls()).toEqual(['Allocate', 'GetPod', 'AttachPod']);
    expect(plugin.state()).toBe(HELD);
  });

  test('when IPAM’s answer is lost', async () => {
    plugin.script.failNext('Allocate', new Failure('STORE_CORRUPT', 'bad record'), { afterWork: true });
    expect(await failed()).toMatchObject({ code: 100 });
    expect(plugin.state()).toBe(HELD);
  });

  test('when it is not the first that the dataplane lists', async () => {
    const variables = { CNI_CONTAINERID: 'second' };
    expect((await plugin.run('ADD', { variables })).exitCode).toBe(0);
    const before = plugin.state();
    plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'sysctl: EROFS'));
    await failed(plugin.run('ADD', { variables }));
    expect(plugin.state()).toBe(before);
  });

  test('when no service can confirm that it holds anything', async () => {
    plugin.script.failNext('GetPod', new Failure('KERNEL_REFUSED', 'dump: EIO'));
    plugin.script.failNext('GetPod', new Failure('KERNEL_REFUSED', 'dump: EIO'));
    expect((await failed()).msg).toContain('pending on this node');
    expect(plugin.state()).toBe(HELD);
    await plugin.replayed();
    expect(plugin.state()).toBe(HELD);
  });
});

test('a failed ADD releases what an interrupted ADD had allocated', async () => {
  plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'link add: EPERM'));
  plugin.ipam.put({ network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' });
  await failed();
  expect(plugin.state()).toBe(NOTHING);
});

describe('ADD without', () => {
  let lonely: Plugin;

  beforeEach(() => {
    // ADD does not wait a second time for a service that used up its time.
    lonely = new Plugin({ timeoutMs: 300, cleanUpTimeoutMs: 600_000 });
  });

  afterEach(() => lonely.end());

  test('the dataplane fails in time with code 11, and releases its address once no interface is left', async () => {
    await lonely.start('ipam');
    expect(await failed(lonely.run('ADD'))).toMatchObject({
      code: 11,
      msg: expect.stringMatching(/^the node's dataplane did not finish within .*pending on this node/),
    });
    expect(lonely.ipam.toString()).toContain('10.65.0.0/32');
    await lonely.start('dataplane');
    await lonely.replayed();
    expect(lonely.state()).toBe(NOTHING);
  });

  test('IPAM fails in time with code 11, and attaches nothing', async () => {
    await lonely.start('dataplane');
    expect(await failed(lonely.run('ADD'))).toMatchObject({ code: 11, msg: expect.stringContaining('podwire-ipam') });
    expect(lonely.dataplane.toString()).toBe('');
    expect(lonely.journal.entries()).toMatchObject([{ attachment: ATTACHMENT, action: 'release-unless-attached' }]);
    await lonely.start('ipam');
    await lonely.replayed();
    expect(lonely.state()).toBe(NOTHING);
  });
});
