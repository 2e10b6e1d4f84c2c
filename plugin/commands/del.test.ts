import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { NOTHING, Plugin, type Command } from '../testing/plugin.js';

const SUBJECT = 'net/c0ffee/eth0';

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin().start();
});

afterEach(async () => {
  await plugin.end();
  expect(plugin.script.unusedFaults()).toEqual([]);
});

const DONE = { exitCode: 0, stdout: '' };

describe('DEL', () => {
  test('detaches, then releases', async () => {
    await plugin.run('ADD');
    plugin.script.calls.length = 0;
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.script.calls).toEqual([`DetachPod ${SUBJECT}`, `Release ${SUBJECT}`]);
    expect(plugin.state()).toBe(NOTHING);
  });

  const lenient: readonly (readonly [string, Command])[] = [
    ['a namespace', { variables: { CNI_NETNS: '' } }],
    ['a namespace that still exists', { variables: { CNI_NETNS: '/run/netns/gone' } }],
    ['an absolute namespace path', { variables: { CNI_NETNS: 'relative' } }],
    ['valid CNI_ARGS', { variables: { CNI_ARGS: 'nonsense' } }],
    ['CNI_PATH', { variables: { CNI_PATH: '' } }],
    ['valid keys that only ADD uses', { config: { mtu: -1, ipam: { type: 'host-local' }, nodename: '_' } }],
    ['a valid prevResult', { config: { prevResult: 'nonsense' } }],
  ];

  test.each(lenient)('works without %s', async (_, command) => {
    await plugin.run('ADD');
    expect(await plugin.run('DEL', command)).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test.each([
    ['/run/netns/pod', '/run/netns/pod'],
    ['', undefined],
    ['relative', undefined],
  ])('passes the namespace to the dataplane where it is a path: %j', async (CNI_NETNS, netns) => {
    await plugin.run('DEL', { variables: { CNI_NETNS } });
    const [detaching] = plugin.script.requests.filter(({ method }) => method === 'DetachPod');
    expect(detaching?.request).toMatchObject({ netns });
  });

  test('succeeds for an unknown attachment, repeated and concurrent', async () => {
    for (let i = 0; i < 3; i++) expect(await plugin.run('DEL')).toEqual(DONE);
    expect(await Promise.all([plugin.run('DEL'), plugin.run('DEL')])).toEqual([DONE, DONE]);
  });

  test('retries Release after a transient failure', async () => {
    await plugin.run('ADD');
    plugin.script.failNext('Release', new Failure('CONFLICT', 'lost a race'));
    plugin.script.failNext('Release', new Failure('UNREACHABLE', 'connection lost'), { afterWork: true });
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('continues when its caller disconnects', async () => {
    await plugin.run('ADD');
    const cancel = new AbortController();
    const letGo = plugin.script.hold('DetachPod');
    const deleting = plugin.run('DEL', { rest: { cancel } });
    await plugin.script.untilCalled('DetachPod');
    cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
    letGo();
    expect(await deleting).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });
});

describe('DEL succeeds, and the journal completes it later', () => {
  const waiting = () =>
    plugin.journal.entries().map(({ attachment, action }) => `${action} ${formatAttachment(attachment)}`);
  const stored = () => [...plugin.store.texts.keys()];

  beforeEach(() => plugin.run('ADD'));

  /** The same with short time limits, for services that never answer. */
  async function hastily(times: { readonly timeoutMs?: number } = {}): Promise<void> {
    await plugin.end();
    plugin = await new Plugin({ delServiceTimeoutMs: 1_500, ...times }).start();
    await plugin.run('ADD');
  }

  test('without a write to the journal when podwire-ipam and the dataplane work', async () => {
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.store.writes).toBe(0);
  });

  test('when the dataplane refuses; the address is held until the interface is gone', async () => {
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.ipam.toString()).toContain('10.65.0.0/32');
    expect(waiting()).toEqual([`detach-and-release ${SUBJECT}`]);
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
    expect(stored()).toEqual([]);
  });

  test('with the namespace of the first DEL, also when later DELs name none', async () => {
    await hastily();
    await plugin.stopServices();
    for (const CNI_NETNS of ['/run/netns/pod', '']) await plugin.run('DEL', { variables: { CNI_NETNS } });
    const next = new Plugin({ store: plugin.store });
    await next.start();
    await next.replayed();
    expect(next.script.requests[0]).toMatchObject({ method: 'DetachPod', request: { netns: '/run/netns/pod' } });
    await next.end();
  });

  test('by a second DEL without a namespace, in the namespace of the first', async () => {
    plugin.script.lacks.add('DetachPod');
    for (const CNI_NETNS of ['/run/netns/pod', '']) await plugin.run('DEL', { variables: { CNI_NETNS } });
    const asked = plugin.script.requests.filter(({ method }) => method === 'DetachPod');
    expect(asked.length).toBeGreaterThanOrEqual(2);
    for (const { request } of asked) expect(request).toMatchObject({ netns: '/run/netns/pod' });
  });

  test('when IPAM refuses', async () => {
    plugin.script.failNext('Release', new Failure('STORE_CORRUPT', 'bad record'));
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.dataplane.toString()).toBe('');
    expect(waiting()).toEqual([`release ${SUBJECT}`]);
    expect(stored()).toEqual([SUBJECT]);
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
  });

  test.each([
    ['podwire-ipam, while the dataplane hangs,', [], 'detach-and-release'],
    ['an answer of the dataplane', ['ipam'], 'detach-and-release'],
    ['IPAM', ['dataplane'], 'release'],
  ] as const)('without %s', async (_, present, action) => {
    await hastily();
    await plugin.stopServices();
    if (present.length > 0) await plugin.start(...present);
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(waiting()).toEqual([`${action} ${SUBJECT}`]);
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(waiting()).toEqual([`${action} ${SUBJECT}`]);
    await plugin.stopServices();
    await plugin.start();
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
    const lines = plugin.record.lines().map(({ msg }) => String(msg));
    expect(lines.filter((line) => line.includes('is pending'))).toHaveLength(2);
    expect(lines.filter((line) => line.endsWith('is done') && line.startsWith('journal'))).toHaveLength(1);
  });

  test('without podwire-ipam, while the dataplane hangs, and with a full disk', async () => {
    await hastily();
    await plugin.stopServices();
    plugin.store.broken = 'full';
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(stored()).toEqual([]);
    expect(plugin.record.lines().map(({ msg }) => msg)).toContainEqual(expect.stringMatching(/memory only.*full/));
    await plugin.start();
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
  });

  test('but fails while the process stops and the entry is in memory only; the runtime repeats it', async () => {
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    plugin.store.broken = 'full';
    plugin.stopping.abort();
    const { exitCode, stdout } = await plugin.run('DEL');
    expect([exitCode, JSON.parse(stdout)]).toEqual([
      1,
      expect.objectContaining({
        code: 11,
        msg: expect.stringMatching(/is stopping.*repeat the call.*cannot be persisted: .*full/),
      }),
    ]);
    plugin.store.broken = 'no';
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('while the process stops and the entry is stored', async () => {
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    plugin.stopping.abort();
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(stored()).toEqual([SUBJECT]);
    await plugin.replayed();
  });

  test('except where the attachment was added again while the journal was unreadable', async () => {
    await hastily();
    const wired = plugin.state();
    await plugin.stopServices();
    expect(await plugin.run('DEL')).toEqual(DONE);
    const next = new Plugin({ store: plugin.store, ipam: plugin.ipam, dataplane: plugin.dataplane });
    try {
      plugin.store.broken = 'gone';
      await next.start();
      expect(await next.run('ADD')).toMatchObject({ exitCode: 0 });
      plugin.store.broken = 'no';
      await next.replayed();
      expect(next.state()).toBe(wired);
      expect([next.journal.entries(), plugin.store.texts.size]).toEqual([[], 0]);
      expect(await next.run('DEL')).toEqual(DONE);
      expect(next.state()).toBe(NOTHING);
    } finally {
      await next.end();
    }
  });

  test('by the next process after this one ends', async () => {
    await hastily();
    await plugin.stopServices();
    await plugin.run('DEL');
    const next = new Plugin({ store: plugin.store });
    next.ipam.put({ network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' });
    await next.start();
    await next.replayed();
    expect(next.state()).toBe(NOTHING);
    expect(next.script.calls).toEqual([`DetachPod ${SUBJECT}`, 'ReleaseAddresses']);
    expect(stored()).toEqual([]);
    await next.end();
  });

  test('by a second DEL that runs before the journal', async () => {
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    const replaying = plugin.script.hold('Release');
    await plugin.run('DEL');
    const second = plugin.run('DEL');
    replaying();
    expect(await second).toEqual(DONE);
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
  });

  test('and a second DEL that completed it removes the entry', async () => {
    plugin.script.lacks.add('Release').add('ReleaseAddresses');
    expect(await plugin.run('DEL')).toEqual(DONE);
    const releases = () => plugin.script.calls.filter((call) => call.startsWith('Release'));
    await vi.waitFor(() => expect(releases()).toHaveLength(2), { interval: 1, timeout: 20_000 });
    expect(waiting()).toEqual([`release ${SUBJECT}`]);
    plugin.script.lacks.clear();
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect([waiting(), stored()]).toEqual([[], []]);
  });

  test('by the next ADD of the attachment, which then gets a new allocation', async () => {
    await hastily();
    await plugin.stopServices();
    await plugin.run('DEL');
    await plugin.start();
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    await plugin.replayed();
    expect(plugin.ipam.toString()).toContain('10.65.0.1/32');
    expect(plugin.dataplane.toString()).toContain('10.65.0.1/32');
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('but never releases a later allocation of the same attachment', async () => {
    await hastily();
    await plugin.stopServices();
    await plugin.start('dataplane');
    await plugin.run('DEL');
    const attachment = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
    plugin.ipam.reallocate(attachment);
    const later = plugin.ipam.toString();
    await plugin.start('ipam');
    await plugin.replayed();
    expect(plugin.ipam.toString()).toBe(later);
  });

  test('when its own time was over before it ran', async () => {
    await hastily({ timeoutMs: 5_000 });
    const letGo = plugin.script.hold('CheckPod');
    const checking = plugin.run('CHECK', {
      config: {
        prevResult: {
          cniVersion: '1.0.0',
          interfaces: [{ name: 'eth0', sandbox: '/run/netns/pod' }],
          ips: [{ address: '10.65.0.0/32' }],
        },
      },
    });
    await plugin.script.untilCalled('CheckPod');
    expect(await plugin.run('DEL')).toEqual(DONE);
    letGo();
    await checking;
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
  });
});

test('an ADD is refused while an earlier DEL is incomplete, and allocates nothing', async () => {
  await plugin.run('ADD');
  plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
  plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
  const letGo = plugin.script.hold('DetachPod');
  const deleting = plugin.run('DEL');
  const adding = plugin.run('ADD');
  letGo();
  expect(await deleting).toEqual(DONE);
  const { exitCode, stdout } = await adding;
  expect(exitCode).toBe(1);
  expect(JSON.parse(stdout)).toMatchObject({ code: 101, msg: expect.stringContaining('an earlier ADD or DEL') });
  await plugin.replayed();
  expect(plugin.state()).toBe(NOTHING);
});

describe('attachments of one container', () => {
  test('in two networks and with two interfaces are held and released separately', async () => {
    const eth1 = { variables: { CNI_IFNAME: 'eth1' } };
    const net2 = { config: { name: 'net2' }, variables: { CNI_IFNAME: 'eth2' } };
    for (const command of [{}, eth1, net2]) expect(await plugin.run('ADD', command)).toMatchObject({ exitCode: 0 });
    expect(plugin.ipam.toString().split('\n')).toHaveLength(3);
    expect(await plugin.run('DEL', eth1)).toEqual(DONE);
    expect(plugin.ipam.toString()).not.toContain('10.65.0.1/32');
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    expect(await plugin.run('DEL', net2)).toEqual(DONE);
    await plugin.replayed();
    expect(plugin.ipam.toString().split('\n')).toHaveLength(1);
    expect(plugin.dataplane.toString()).toContain('10.65.0.0/32');
  });
});
