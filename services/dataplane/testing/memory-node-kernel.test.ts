import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { blackhole, type NodeKernelFixture, vxlan } from './kernels.js';
import { MemoryLinks } from './memory-links.js';
import { MemoryNft } from './memory-nft.js';
import { runNodeCommand } from './memory-node-commands.js';
import { MemoryNodeKernel } from './memory-node-kernel.js';
import { nftContract } from './contracts/nft-contract.js';
import { linkSourceContract, nodeKernelContract } from './contracts/node-kernel-contract.js';

function memoryFixture(): Promise<NodeKernelFixture> {
  const kernel = new MemoryNodeKernel();
  return Promise.resolve({
    kernel,
    runCommand: (command) => runNodeCommand(kernel.node, command),
    addParent: (name, ...addresses) => {
      runNodeCommand(kernel.node, `ip link add ${name} type bridge`);
      runNodeCommand(kernel.node, `ip link set ${name} up`);
      for (const address of addresses) runNodeCommand(kernel.node, `ip address add ${address} dev ${name}`);
    },
    destroy: () => kernel.close(),
  });
}

describe('the fake node kernel', () => {
  nodeKernelContract(memoryFixture);
});

describe('functions of the fake alone', () => {
  test('it prints itself like `ip`, and lists its commands', async () => {
    const kernel = new MemoryNodeKernel();
    runNodeCommand(kernel.node, 'ip link add up0 type bridge');
    await kernel.apply([
      { type: 'device-add', tunnel: vxlan },
      { type: 'route-add', route: blackhole('10.65.0.0/26') },
      { type: 'route-add', route: blackhole('10.65.0.0/26') },
    ]);
    expect(kernel.node.print()).toEqual([
      'link up0 bridge 02:00:00:00:00:01 mtu 1500 down',
      'link vxlan4.podwire vxlan 66:00:00:00:00:01 mtu 1450 down',
      'route blackhole 10.65.0.0/26 proto 87 metric 0',
      'sysctl net/ipv4/ip_forward=0',
      'sysctl net/ipv6/conf/all/forwarding=0',
    ]);
    expect(kernel.commands).toEqual([
      'ip link add vxlan4.podwire mtu 1450 address 66:00:00:00:00:01 type vxlan id 4096 dstport 4789 local 10.0.0.1 dev up0 nolearning',
      'ip route add blackhole 10.65.0.0/26 proto 87',
      'ip route add blackhole 10.65.0.0/26 proto 87 # EEXIST',
    ]);
  });

  test('it fails the requested operation once, and reports unused faults', async () => {
    const kernel = new MemoryNodeKernel();
    kernel.failNext('observe', { errno: 'ENOBUFS' });
    const scope = { sysctls: [], isWanted: () => false };
    expect(kernel.unusedFaults).toBe(1);
    await expect(kernel.observe(scope)).rejects.toMatchObject({ details: { errno: 'ENOBUFS' } });
    expect(kernel.unusedFaults).toBe(0);
    expect((await kernel.observe(scope)).routes).toEqual([]);
  });
});

linkSourceContract(() => {
  const source = new MemoryLinks();
  source.sysctls.set('net/ipv6/conf/lo/accept_ra', '1');
  return Promise.resolve({
    source,
    changer: source,
    sysctl: { key: ['net', 'ipv6', 'conf', 'lo', 'accept_ra'], value: '2' },
  });
});

nftContract(() => new MemoryNft());

test('a fault fails the next call of its method, once', async () => {
  const nft = new MemoryNft();
  const table = { family: 'ip', name: 'podwire' } as const;
  nft.failNext('read', new Failure('KERNEL_REFUSED', 'for once'));
  await nft.apply([{ add: { table } }]);
  expect(nft.unusedFaults).toBe(1);
  await expect(nft.read(table)).rejects.toThrow('for once');
  expect(await nft.read(table)).toEqual([{ table }]);
  expect([nft.unusedFaults, nft.reads, nft.transactions]).toEqual([0, 2, 1]);
});
