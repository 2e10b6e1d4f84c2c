import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NOTHING, Plugin, type Command } from '../plugin.fixture.js';

const SUBJECT = 'net/c0ffee/eth0';

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin({ timeoutMs: 1_000 }).start();
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
    ['a namespace path that is one', { variables: { CNI_NETNS: 'relative' } }],
    ['CNI_ARGS that can be read', { variables: { CNI_ARGS: 'nonsense' } }],
    ['CNI_PATH', { variables: { CNI_PATH: '' } }],
    ['sound keys that only ADD uses', { config: { mtu: -1, ipam: { type: 'host-local' }, nodename: '_' } }],
    ['a prevResult that can be read', { config: { prevResult: 'nonsense' } }],
  ];

  test.each(lenient)('does without %s', async (_, command) => {
    await plugin.run('ADD');
    expect(await plugin.run('DEL', command)).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('succeeds for what never was, and however often it comes', async () => {
    for (let i = 0; i < 3; i++) expect(await plugin.run('DEL')).toEqual(DONE);
    expect(await Promise.all([plugin.run('DEL'), plugin.run('DEL')])).toEqual([DONE, DONE]);
  });

  test('takes the host interface of another for none of its own', async () => {
    plugin.script.failNext('DetachPod', new Failure('HOST_INTERFACE_TAKEN', 'another’s'));
    expect(await plugin.run('DEL')).toEqual(DONE);
  });

  test.each(['DetachPod', 'Release'] as const)('repeats %s while that may help', async (method) => {
    await plugin.run('ADD');
    plugin.script.failNext(method, new Failure('CONFLICT', 'lost a race'));
    plugin.script.failNext(method, new Failure('UNREACHABLE', 'connection lost'), { afterWork: true });
    expect(await plugin.run('DEL')).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('goes on when its caller goes away', async () => {
    await plugin.run('ADD');
    const cancel = new AbortController();
    const letGo = plugin.script.hold('DetachPod');
    const deleting = plugin.run('DEL', { rest: { cancel } });
    await plugin.script.untilCalled('DetachPod');
    cancel.abort(new Failure('CANCELLED', 'the caller went away'));
    letGo();
    expect(await deleting).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });
});

describe('DEL that is not done says what, and tries the rest', () => {
  const error = async (): Promise<{ code: number; msg: string; details: string }> => {
    const answer = await plugin.run('DEL');
    expect(answer.exitCode).toBe(1);
    return JSON.parse(answer.stdout);
  };

  beforeEach(() => plugin.run('ADD'));

  test('when the dataplane refuses', async () => {
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    expect(await error()).toMatchObject({ code: 101, msg: expect.stringMatching(/interface.*EBUSY/) });
    expect(plugin.ipam.toString()).toBe('');
  });

  test('when IPAM refuses', async () => {
    plugin.script.failNext('Release', new Failure('STORE_CORRUPT', 'bad record'));
    expect(await error()).toMatchObject({ code: 100, msg: expect.stringMatching(/addresses.*bad record/) });
    expect(plugin.dataplane.toString()).toBe('');
  });

  test('when both are away, with code 11', async () => {
    await plugin.stopServices();
    const { code, msg } = await error();
    expect(code).toBe(11);
    expect(msg).toMatch(/podwire-dataplane at unix:.*podwire-ipam at unix:/);
  });

  test('when the dataplane is away, and still releases the addresses', async () => {
    await plugin.stopServices();
    await plugin.start('ipam');
    expect(await error()).toMatchObject({ code: 11, msg: expect.stringContaining('podwire-dataplane') });
    expect(plugin.ipam.toString()).toBe('');
  });

  test('in words that containerd does not take for success', async () => {
    plugin.script.failNext(
      'DetachPod',
      new Failure('KERNEL_REFUSED', 'Link Not Found: No such file or directory', { details: { a: 'x not found' } }),
    );
    const { msg, details } = await error();
    expect(`${msg} ${details}`).toMatch(/link/i);
    expect(`${msg} ${details}`).not.toMatch(/not found|no such file/i);
  });
});
