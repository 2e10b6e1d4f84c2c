import { Failure } from '@podwire/shared/failure/failure';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NOTHING, Plugin, type Command } from '../testing/plugin.js';

const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const SUBJECT = 'net/c0ffee/eth0';
const LEASE = { address: '10.65.0.200', sequenceNumber: 9n, poolName: 'default' };
const { address, sequenceNumber } = LEASE;

let plugin: Plugin;

beforeEach(async () => {
  plugin = await new Plugin({ recorded: true, timeoutMs: 300 }).start();
  plugin.nodeAddresses.leases.push(LEASE);
});

afterEach(async () => {
  await plugin.end();
});

const record = () => plugin.nodeAddresses.recorded(ATTACHMENT);

async function failed(command: string, options: Command = {}): Promise<{ code: number; msg: string }> {
  const answer = await plugin.run(command, options);
  expect(answer.exitCode).toBe(1);
  return JSON.parse(answer.stdout);
}

describe('ADD', () => {
  test('gives a pod the node’s lease without podwire-ipam, and records it before the answer', async () => {
    const { exitCode, stdout } = await plugin.run('ADD');
    expect([exitCode, JSON.parse(stdout).ips]).toEqual([0, [{ interface: 1, address: '10.65.0.200/32' }]]);
    expect(plugin.script.calls).toEqual([`AttachPod ${SUBJECT}`]);
    expect(record()?.allocation).toEqual({
      addresses: [{ address, sequenceNumber }],
      nodeName: 'node-1',
      pod: { namespace: 'default', name: 'web-0', uid: 'u-1' },
      isBound: false,
    });
    const wire = `${hostInterfaceName(ATTACHMENT)} -> eth0@/run/netns/pod ${podMac(ATTACHMENT)} 10.65.0.200/32`;
    expect(plugin.state()).toContain(wire);
  });

  test('is refused while another machine has the node’s name, also when podwire-ipam would allocate', async () => {
    plugin.nodeAddresses.refusal = new Failure('NODE_NAME_TAKEN', 'two machines have the name node-1');
    for (const command of [{}, { rest: { plugin: 'podwire-ipam' } }]) {
      const refused = await failed('ADD', command);
      expect(refused).toMatchObject({ code: 107, msg: expect.stringContaining('two machines') });
    }
    expect(plugin.script.calls.filter((call) => call.startsWith('Allocate'))).toEqual([]);
    expect(plugin.nodeAddresses.leases).toEqual([LEASE]);
  });

  test('gives no pod an address that another pod of the node has, whatever podwire-ipam allocates', async () => {
    plugin.nodeAddresses.leases.splice(0);
    plugin.nodeAddresses.heldByOtherPods.add('10.65.0.0');
    expect(await failed('ADD')).toMatchObject({ code: 11, msg: expect.stringContaining('10.65.0.0') });
    expect(plugin.script.calls).toEqual([`Allocate ${SUBJECT}`, `GetPod ${SUBJECT}`, `Release ${SUBJECT}`]);
    plugin.nodeAddresses.heldByOtherPods.clear();
    expect((await plugin.run('ADD')).exitCode).toBe(0);
  });

  test('works while podwire-ipam is down, and says so when no lease is left', async () => {
    await plugin.stopServices();
    plugin.dataplane.serve();
    expect((await plugin.run('ADD')).exitCode).toBe(0);
    const second = { variables: { CNI_CONTAINERID: 'c0ffee2' } };
    expect(await failed('ADD', second)).toMatchObject({ code: 11 });
  });

  test('a second time returns the same address', async () => {
    const first = await plugin.run('ADD');
    expect(await plugin.run('ADD')).toEqual(first);
    expect(record()?.allocation?.isBound).toBe(false);
  });

  test.each<readonly [string, Command]>([
    ['addresses', { config: { ipam: { type: 'podwire-ipam' }, args: { cni: { ips: ['10.65.0.9'] } } } }],
    ['pools', { config: { ipam: { type: 'podwire-ipam', ipv4_pools: ['10.65.0.0/16'] } } }],
    ['another node name', { config: { nodename: 'node-9' } }],
  ])('a pod that requests %s asks podwire-ipam', async (_, command) => {
    await plugin.run('ADD', command);
    expect(plugin.script.calls).toContain(`Allocate ${SUBJECT}`);
    expect(plugin.nodeAddresses.leases).toEqual([LEASE]);
  });

  test('an attachment whose name podwire-ipam refuses asks it', async () => {
    await plugin.run('ADD', { variables: { CNI_IFNAME: 'eth-' } });
    expect(plugin.script.calls[0]).toBe('Allocate net/c0ffee/eth-');
    expect(plugin.nodeAddresses.leases).toEqual([LEASE]);
  });

  test('without a wire podwire-ipam allocates', async () => {
    await plugin.run('ADD', { rest: { plugin: 'podwire-ipam' } });
    expect(plugin.script.calls[0]).toBe(`Allocate ${SUBJECT}`);
  });

  test('an allocation of podwire-ipam is recorded as bound', async () => {
    plugin.nodeAddresses.leases.length = 0;
    await plugin.run('ADD');
    expect(record()?.allocation).toMatchObject({ isBound: true, addresses: [{ address: '10.65.0.0' }] });
  });

  test('gives the lease back if the pod cannot be wired', async () => {
    plugin.dataplane.addForeignInterface('/run/netns/pod', 'eth0');
    await failed('ADD');
    expect([plugin.nodeAddresses.leases, plugin.state(), plugin.journal.entries()]).toEqual([[LEASE], NOTHING, []]);
  });

  test('waits until the addresses of an earlier attachment of the same name are returned', async () => {
    plugin.nodeAddresses.isDelayed = true;
    await plugin.run('ADD');
    await plugin.run('DEL');
    expect(record()?.isDead).toBe(true);
    expect(await failed('ADD')).toMatchObject({ code: 11 });
    plugin.nodeAddresses.isDelayed = false;
    plugin.nodeAddresses.leases.push({ ...LEASE, address: '10.65.0.201' });
    const { stdout } = await plugin.run('ADD');
    expect(JSON.parse(stdout).ips).toEqual([{ interface: 1, address: '10.65.0.201/32' }]);
  });
});

describe('DEL', () => {
  test('removes the wire and leaves the addresses to the record', async () => {
    await plugin.run('ADD');
    plugin.script.calls.length = 0;
    expect(await plugin.run('DEL')).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.script.calls).toEqual([`DetachPod ${SUBJECT}`]);
    expect(plugin.nodeAddresses.returnedAddresses).toEqual([{ address, sequenceNumber }]);
  });

  test('succeeds while podwire-ipam is down, without a journal entry', async () => {
    plugin.nodeAddresses.isDelayed = true;
    await plugin.run('ADD');
    await plugin.stopServices();
    plugin.dataplane.serve();
    expect((await plugin.run('DEL')).exitCode).toBe(0);
    expect([plugin.journal.entries(), record()?.isDead]).toEqual([[], true]);
  });

  test('that the kernel refuses is left to the record, without a journal entry; the next ADD completes it', async () => {
    const refusal = new Failure('KERNEL_REFUSED', 'link del: EBUSY');
    plugin.nodeAddresses.leases.push({ ...LEASE, address: '10.65.0.201' });
    await plugin.run('ADD');
    plugin.script.failNext('DetachPod', refusal);
    expect((await plugin.run('DEL')).exitCode).toBe(0);
    expect([plugin.journal.entries(), record()?.isDetaching]).toEqual([[], true]);
    plugin.script.failNext('DetachPod', refusal);
    expect(await failed('ADD')).toMatchObject({ code: 101, msg: expect.stringContaining('an earlier ADD or DEL') });
    const { stdout } = await plugin.run('ADD');
    expect(JSON.parse(stdout).ips).toEqual([{ interface: 1, address: '10.65.0.201/32' }]);
    expect(plugin.nodeAddresses.returnedAddresses).toEqual([{ address, sequenceNumber }]);
  });

  test('releases allocations without a record in podwire-ipam', async () => {
    await plugin.run('ADD');
    plugin.nodeAddresses.records.clear();
    plugin.script.calls.length = 0;
    expect((await plugin.run('DEL')).exitCode).toBe(0);
    expect(plugin.script.calls[0]).toBe(`DetachPod ${SUBJECT}`);
    expect(plugin.script.calls).toHaveLength(2);
  });
});

test('GC leaves the addresses of a dead pod to its record', async () => {
  plugin.nodeAddresses.isDelayed = true;
  await plugin.run('ADD');
  await plugin.run('DEL');
  plugin.ipam.put(ATTACHMENT);
  plugin.script.calls.length = 0;
  const config = { cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] };
  const rest = { startedNs: BigInt(Date.now() + 60_000) * 1_000_000n };
  expect(await plugin.run('GC', { config, rest })).toEqual({ exitCode: 0, stdout: '' });
  expect(plugin.script.calls).toContain(`DetachPod ${SUBJECT}`);
  expect(plugin.script.calls.filter((call) => call.startsWith('Release'))).toEqual([]);
  expect(record()?.isDead).toBe(true);
});

describe('CHECK', () => {
  const prevResult = async () => ({ config: { prevResult: JSON.parse((await plugin.run('ADD')).stdout) } });

  test('compares with the record until podwire-ipam knows the pod', async () => {
    const command = await prevResult();
    expect(await plugin.run('CHECK', command)).toEqual({ exitCode: 0, stdout: '' });
    expect(plugin.script.calls).not.toContain(`GetEndpoint ${SUBJECT}`);
  });

  test('compares with the record while podwire-ipam is down', async () => {
    plugin.nodeAddresses.leases.length = 0;
    const command = await prevResult();
    await plugin.stopServices();
    plugin.dataplane.serve();
    expect(await plugin.run('CHECK', command)).toEqual({ exitCode: 0, stdout: '' });
  });
});

test('STATUS succeeds with a lease on the node, without podwire-ipam', async () => {
  await plugin.stopServices();
  plugin.dataplane.serve();
  expect(await plugin.run('STATUS', { config: { cniVersion: '1.1.0' } })).toEqual({ exitCode: 0, stdout: '' });
  plugin.nodeAddresses.leases.length = 0;
});
