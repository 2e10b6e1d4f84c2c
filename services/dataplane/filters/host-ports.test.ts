import type { HostPort } from '@podwire/shared/attachment/host-port';
import { Failure } from '@podwire/shared/failure/failure';
import { expect, test } from 'vitest';

import { removal } from '../nft/table.js';
import { MemoryNft } from '../testing/memory-nft.js';
import { reconcilerOptions } from '../testing/nft.js';
import { address, hostPort as port, podNetwork } from '../testing/pods.js';
import { HOST_PORT_TABLE, HostPorts } from './host-ports.js';

const pod = (name: string, ...hostPorts: readonly HostPort[]) => ({
  ...podNetwork(name, { hostInterfaceName: `podw${name}`, hostPorts }),
  pod: { namespace: 'default', name, uid: '' },
});

function open() {
  const { options, ...rest } = reconcilerOptions(new MemoryNft());
  const deletedFlows: string[] = [];
  const deletePortFlows = (protocol: string, hostPorts: readonly number[]) => {
    deletedFlows.push(...hostPorts.map((hostPort) => `${protocol}/${hostPort}`));
    return Promise.resolve(0);
  };
  return { ...rest, deletedFlows, ports: new HostPorts({ ...options, kernel: { deletePortFlows } }) };
}

/** The elements of a map or set as text. */
async function elements(nft: MemoryNft, map: string): Promise<unknown> {
  const objects = (await nft.read(HOST_PORT_TABLE)) ?? [];
  const found = objects
    .map((object) => object.map ?? object.set)
    .find((value) => value && typeof value === 'object' && 'name' in value && value.name === map);
  return found && typeof found === 'object' && 'elem' in found ? found.elem : undefined;
}

test('a node without host ports has no table, and keeps the table of its first host port', async () => {
  const { ports, nft } = open();
  await ports.start([]);
  await ports.install(pod('a'));
  expect(await nft.read(HOST_PORT_TABLE)).toBeUndefined();
  await ports.install(pod('a', port(8080)));
  expect(await elements(nft, 'pod_address4')).toEqual([[{ concat: [6, 8080] }, '10.65.0.7']]);
  expect(await elements(nft, 'pod_port4')).toEqual([[{ concat: [6, 8080] }, 80]]);
  await ports.forget('podwa');
  expect(await nft.read(HOST_PORT_TABLE)).toBeDefined();
  expect(await elements(nft, 'pod_address4')).toBeUndefined();
  await ports.stop();
});

test('a port that another pod has is refused, and nothing changes', async () => {
  const { ports, nft } = open();
  await ports.start([pod('a', port(8080), port(8081))]);
  const before = await nft.read(HOST_PORT_TABLE);
  const refused = ports.install(pod('b', port(8082), port(8081)));
  await expect(refused).rejects.toThrow(
    'host port tcp/8081: pod default/a of this node has it; wait for its end, or choose another port',
  );
  await expect(refused).rejects.toMatchObject({ code: 'HOST_PORT_TAKEN', retryable: true });
  expect(await nft.read(HOST_PORT_TABLE)).toEqual(before);
  await ports.release('podwa');
  await ports.install(pod('b', port(8082), port(8081)));
  expect(await elements(nft, 'pod_port4')).toEqual([
    [{ concat: [6, 8082] }, 80],
    [{ concat: [6, 8081] }, 80],
  ]);
  await ports.stop();
});

test('flows to a UDP port are deleted when it gets a pod, and when the pod ends', async () => {
  const { ports, deletedFlows } = open();
  await ports.start([]);
  await ports.install(pod('a', port(53, { protocol: 'udp' }), port(53), port(54, { protocol: 'udp' })));
  expect(deletedFlows.splice(0)).toEqual(['udp/53', 'udp/54']);
  await ports.release('podwa');
  await ports.forget('podwa');
  expect(deletedFlows).toEqual(['udp/53', 'udp/54']);
  await ports.stop();
});

test('flows to a UDP port of a pod whose end was interrupted are deleted at the start', async () => {
  const { ports, deletedFlows } = open();
  await ports.start([pod('a', port(54, { protocol: 'udp' }))], [pod('b', port(53, { protocol: 'udp' }))]);
  expect(deletedFlows).toEqual(['udp/53']);
  await ports.stop();
});

test('two pods may have one address while it moves', async () => {
  const { ports, nft } = open();
  await ports.start([pod('a', port(8080)), pod('b', port(8081))]);
  const both = [{ concat: ['10.65.0.7', '10.65.0.7'] }, { concat: ['127.0.0.1', '10.65.0.7'] }];
  expect(await elements(nft, 'masqueraded4')).toEqual(both);
  await ports.forget('podwa');
  expect(await elements(nft, 'masqueraded4')).toEqual(both);
  await ports.stop();
});

test('without nftables, only pods with host ports are refused', async () => {
  const { ports, nft } = open();
  await ports.start([]);
  nft.failNext('apply', new Failure('KERNEL_UNSUPPORTED', 'no nft'));
  await ports.install(pod('a'));
  await expect(ports.install(pod('b', port(8080)))).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
  expect(ports.conditions()).toMatchObject([{ reason: 'HostPortsUnavailable' }]);
  await ports.forget('podwb');
  await ports.stop();
});

test('of two recorded pods with one port, the later one has it: the first one has died without a DEL', async () => {
  const { ports, nft } = open();
  const later = { ...pod('b', port(8080, { podPort: 81 })), addresses: [address('10.65.0.8')] };
  await ports.start([pod('a', port(8080), port(8081)), later]);
  expect(await elements(nft, 'pod_address4')).toEqual([
    [{ concat: [6, 8080] }, '10.65.0.8'],
    [{ concat: [6, 8081] }, '10.65.0.7'],
  ]);
  await ports.stop();
});

test('a check names the elements that are missing, or lead to another pod', async () => {
  const { ports, nft } = open();
  const network = pod('a', port(8080), port(8081, { hostAddress: address('192.0.2.1') }));
  await ports.start([network]);
  expect(await ports.differences(network)).toEqual([]);
  expect(await ports.differences(pod('a'))).toEqual([]);
  const moved = { ...network, hostPorts: [port(8080, { podPort: 81 })] };
  const inTable = 'in table inet podwire_hostports';
  const missing = { wanted: 'present', actual: 'missing' };
  expect(await ports.differences(moved)).toEqual([
    { object: `element 6 . 8080 : 81 of pod_port4 ${inTable}`, ...missing },
  ]);
  await nft.apply(removal(HOST_PORT_TABLE));
  expect(await ports.differences(network)).toHaveLength(6);
  await ports.stop();
});
