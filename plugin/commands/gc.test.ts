import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { BOOTED_AT_MS, NOTHING, Plugin } from '../testing/plugin.js';

const VALID = 'cni.dev/valid-attachments';
const DONE = { exitCode: 0, stdout: '' };

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin().start();
});

afterEach(async () => {
  await plugin.end();
  expect(plugin.script.unusedFaults()).toEqual([]);
});

const add = (containerId: string, config = {}) =>
  plugin.run('ADD', { variables: { CNI_CONTAINERID: containerId }, config });
/** Later than the ADDs before it, also when the clock did not advance. */
const gc = (config: Record<string, unknown>) =>
  plugin.run('GC', {
    config: { cniVersion: '1.1.0', ...config },
    rest: { startedNs: BigInt(Date.now() + 1) * 1_000_000n },
  });
const attachment = (containerId: string) => ({ network: 'net', containerId, interfaceName: 'eth0' });
const listed = (...ids: string[]) => ids.map((containerID) => ({ containerID, ifname: 'eth0' }));
const holders = () => plugin.ipam.toString().match(/^\S+/gm) ?? [];
const error = async (config: Record<string, unknown>) => {
  const answer = await gc(config);
  expect(answer.exitCode).toBe(1);
  return JSON.parse(answer.stdout);
};

describe('GC with a list', () => {
  test('keeps listed attachments, and attachments of other networks, nodes and interfaces', async () => {
    for (const id of ['a', 'b', 'c']) await add(id);
    await add('other', { name: 'net2' });
    plugin.ipam.put(attachment('afar'), { nodeName: 'node-2' });
    plugin.ipam.put(attachment('unwired'));
    expect(await gc({ [VALID]: listed('b') })).toEqual(DONE);
    expect(holders()).toEqual(['net.b', 'net2.other', 'net.afar']);
    expect(plugin.dataplane.toString().split('\n')).toHaveLength(2);
    expect(plugin.script.calls.filter((call) => call.startsWith('CollectGarbage'))).toHaveLength(1);
  });

  test('uses the node name of the configuration', async () => {
    plugin.ipam.put(attachment('here'), { nodeName: 'node-2' });
    plugin.ipam.put(attachment('afar'));
    expect(await gc({ [VALID]: [], nodename: 'node-2' })).toEqual(DONE);
    expect(holders()).toEqual(['net.afar']);
    expect(await gc({ [VALID]: [], nodename: 'Node_2' })).toEqual(DONE);
    expect(holders()).toEqual([]);
  });

  test.each([[null], [[]]])('%j removes everything of this network', async (list) => {
    for (const id of ['a', 'b']) await add(id);
    expect(await gc({ [VALID]: list })).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
    expect(await gc({ [VALID]: list })).toEqual(DONE);
  });

  test('accepts the key’s name of an earlier draft of the specification', async () => {
    for (const id of ['a', 'b']) await add(id);
    expect(await gc({ 'cni.dev/attachments': listed('a') })).toEqual(DONE);
    expect(holders()).toEqual(['net.a']);
    // libcni writes both: the current name wins.
    await add('c');
    expect(await gc({ 'cni.dev/attachments': listed('c'), [VALID]: listed('a') })).toEqual(DONE);
    expect(holders()).toEqual(['net.a']);
  });

  test('keeps an address that is routed to another attachment’s interface, as under Calico’s names', async () => {
    await add('a', { name: 'calico' });
    const address = { address: '10.65.0.0/32', blockCidr: '10.65.0.0/26', poolName: 'default', sequenceNumber: 7n };
    plugin.ipam.reallocate({ ...attachment('a'), network: 'calico' });
    plugin.ipam.put(attachment('elsewhere'));
    plugin.ipam.put(attachment('led'), { addresses: [address] });
    expect(await gc({ [VALID]: [] })).toEqual(DONE);
    expect(holders()).toEqual(['calico.a', 'net.led']);
  });

  test('keeps the address of an interface that stays, and names the interface', async () => {
    for (const id of ['a', 'b']) await add(id);
    plugin.dataplane.makeStubborn(attachment('a'));
    expect(await error({ [VALID]: [] })).toMatchObject({
      code: 101,
      msg: expect.stringMatching(/net\/a\/eth0.*EBUSY/),
    });
    expect(holders()).toEqual(['net.a']);
  });

  test('continues after an address that cannot be released', async () => {
    for (const id of ['a', 'b', 'c']) await add(id);
    plugin.script.failNext('ReleaseAddresses', new Failure('STORE_CORRUPT', 'bad record'));
    expect(await error({ [VALID]: [] })).toMatchObject({ code: 100, msg: expect.stringContaining('bad record') });
    expect(holders()).toEqual(['net.a']);
  });

  test('continues after pending releases that are refused again, and names each', async () => {
    for (const id of ['a', 'left']) await add(id);
    plugin.script.lacks.add('Release').add('ReleaseAddresses');
    expect(await plugin.run('DEL', { variables: { CNI_CONTAINERID: 'left' } })).toEqual(DONE);
    plugin.dataplane.makeStubborn(attachment('a'));
    const { msg } = await error({ [VALID]: [] });
    expect(msg).toMatch(
      /^GC is incomplete: .*does not know Release.*; net\/a\/eth0: its wire was not removed: .*EBUSY.*; repeat it$/,
    );
  });

  test('continues after pending releases whose service does not answer', async () => {
    await plugin.end();
    plugin = await new Plugin({ timeoutMs: 10_000, delServiceTimeoutMs: 200 }).start();
    for (const id of ['a', 'left', 'left-too']) await add(id);
    plugin.script.lacks.add('Release').add('ReleaseAddresses');
    for (const CNI_CONTAINERID of ['left', 'left-too'])
      expect(await plugin.run('DEL', { variables: { CNI_CONTAINERID } })).toEqual(DONE);
    plugin.script.lacks.clear();
    const letGo = plugin.script.hold('ReleaseAddresses');
    const { msg } = await error({ [VALID]: [] });
    expect(msg).toMatch(/^GC is incomplete: podwire-ipam .*did not answer/);
    expect(plugin.dataplane.toString()).toBe('');
    letGo();
    expect(await gc({ [VALID]: [] })).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('keeps pending releases of other networks', async () => {
    await add('left', { name: 'net2' });
    plugin.script.lacks.add('Release').add('ReleaseAddresses');
    const variables = { CNI_CONTAINERID: 'left' };
    expect(await plugin.run('DEL', { variables, config: { name: 'net2' } })).toEqual(DONE);
    expect(await gc({ [VALID]: [] })).toEqual(DONE);
    expect(plugin.journal.entries()).toHaveLength(1);
  });

  test('releases nothing while the kernel cannot be read', async () => {
    await add('a');
    plugin.ipam.put(attachment('unwired'));
    plugin.script.failNext('CollectGarbage', new Failure('KERNEL_REFUSED', 'dump: EPERM'));
    expect(await error({ [VALID]: [] })).toMatchObject({ code: 101 });
    expect(holders()).toEqual(['net.a', 'net.unwired']);
  });

  test('is refused as a whole when the list is malformed', async () => {
    await add('a');
    const list = [...listed('a'), { containerID: '../x' }, 7];
    const { code, msg } = await error({ [VALID]: list });
    expect(code).toBe(7);
    expect(msg).toMatch(/valid-attachments\.1\.containerID.*valid-attachments\.1\.ifname.*valid-attachments\.2/);
    expect(await error({ [VALID]: 'all' })).toMatchObject({ code: 7 });
    expect(holders()).toEqual(['net.a']);
  });

  test('keeps an ADD in flight, and one that ended after the runtime made its list', async () => {
    const arrivedNs = BigInt(Date.now()) * 1_000_000n;
    await add('ended');
    const letGo = plugin.script.hold('AttachPod');
    const adding = add('running');
    await plugin.script.untilCalled('AttachPod net/running');
    const rest = { startedNs: arrivedNs };
    expect(await plugin.run('GC', { config: { cniVersion: '1.1.0', [VALID]: [] }, rest })).toEqual(DONE);
    letGo();
    expect(await adding).toMatchObject({ exitCode: 0 });
    expect(holders()).toEqual(['net.ended', 'net.running']);
  });

  test('makes a concurrent ADD wait, which then gets a new address', async () => {
    plugin.ipam.put(attachment('a'));
    const letGo = plugin.script.hold('ReleaseAddresses');
    const collecting = gc({ [VALID]: [] });
    await plugin.script.untilCalled('ReleaseAddresses');
    const adding = add('a');
    letGo();
    expect(await collecting).toEqual(DONE);
    expect(await adding).toMatchObject({ exitCode: 0 });
    expect(plugin.dataplane.toString()).toContain('10.65.0.1/32');
    expect(plugin.ipam.toString()).toContain('10.65.0.1/32');
  });

  test('keeps an ADD that began while GC waited in the queue', async () => {
    plugin.ipam.put(attachment('a'));
    const letGo = plugin.script.hold('GetEndpoint');
    const variables = { CNI_CONTAINERID: 'a' };
    const checking = plugin.run('CHECK', { variables, config: { prevResult: { cniVersion: '1.0.0' } } });
    await plugin.script.untilCalled('GetEndpoint net/a');
    const run = vi.spyOn(plugin.parts.queue, 'run');
    const collecting = gc({ [VALID]: [] });
    await vi.waitFor(
      () => expect(run).toHaveBeenCalledWith(expect.objectContaining({ command: 'GC' }), expect.anything()),
      { timeout: 20_000 },
    );
    const adding = add('a');
    letGo();
    await checking;
    expect(await collecting).toEqual(DONE);
    expect(await adding).toMatchObject({ exitCode: 0 });
    expect(plugin.script.calls.filter((call) => call.startsWith('Release'))).toEqual([]);
    expect(plugin.ipam.toString()).toContain(' 10.65.0.0/32 ');
  });

  test('releases allocations that podwire-ipam has without an endpoint, or says that it could not', async () => {
    await add('a');
    const allocated = (containerId: string, address: string) => ({
      attachment: attachment(containerId),
      held: [{ address, sequenceNumber: 70n }],
      bootId: undefined,
      createdAtMs: undefined,
    });
    plugin.nodeAddresses.unknown = [allocated('lost', '10.65.0.60'), allocated('listed', '10.65.0.61')];
    expect(await gc({ [VALID]: listed('a', 'listed') })).toEqual(DONE);
    expect(plugin.script.requests.filter(({ method }) => method === 'ReleaseAddresses')).toMatchObject([
      { request: { releases: [{ address: '10.65.0.60', handleId: 'net.lost', sequenceNumber: 70n }] } },
    ]);
    plugin.nodeAddresses.unknown = new Failure('UNREACHABLE', 'podwire-ipam does not answer');
    expect(await error({ [VALID]: listed('a') })).toMatchObject({
      code: 11,
      msg: expect.stringMatching(/^GC is incomplete: podwire-ipam does not answer/),
    });
    expect(holders()).toEqual(['net.a']);
  });

  test('leaves allocations of another boot to the inventory: their machine may have had the name, and still run', async () => {
    await add('a');
    plugin.ipam.put(attachment('displaced'), {
      netns: { bootId: '22222222-2222-4333-8444-555555555555', inode: 1n },
      createTime: new Date(BOOTED_AT_MS - 1),
    });
    plugin.ipam.put(attachment('gone'));
    expect(await gc({ [VALID]: listed('a') })).toEqual(DONE);
    expect(holders()).toEqual(['net.a', 'net.displaced']);
  });

  test('names the service whose release lacks a method', async () => {
    plugin.script.failNext('ListEndpoints', new Failure('UNIMPLEMENTED', 'podwire-ipam: does not know the method'));
    expect(await error({ [VALID]: [] })).toMatchObject({ code: 105, msg: expect.stringContaining('podwire-ipam') });
  });
});

describe('GC without a list', () => {
  test('removes only the proven dead: pending releases, and attachments of an earlier boot', async () => {
    await add('lives');
    await add('left');
    plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'link del: EBUSY'));
    expect(await plugin.run('DEL', { variables: { CNI_CONTAINERID: 'left' } })).toEqual(DONE);
    const earlier = { netns: { bootId: '22222222-2222-4333-8444-555555555555', inode: 1n } };
    plugin.ipam.put(attachment('rebooted'), { ...earlier, createTime: new Date(BOOTED_AT_MS - 1) });
    plugin.ipam.put(attachment('twin'), { ...earlier, createTime: new Date(BOOTED_AT_MS) });
    plugin.ipam.put(attachment('untold'));
    plugin.ipam.put(attachment('boot-untold'), { createTime: new Date(BOOTED_AT_MS - 1) });
    expect(await gc({})).toEqual(DONE);
    expect(holders()).toEqual(['net.lives', 'net.twin', 'net.untold', 'net.boot-untold']);
    expect(plugin.dataplane.toString().split('\n')).toHaveLength(1);
    expect(plugin.script.calls.join('\n')).not.toContain('CollectGarbage');
  });
});

test.each(['0.4.0', '1.0.0'])('GC is refused in version %s, which does not have it', async (cniVersion) => {
  expect(await error({ cniVersion })).toMatchObject({
    code: 1,
    msg: expect.stringContaining('GC requires CNI 1.1.0'),
  });
});
