import { describe, expect, test } from 'vitest';

import { diff } from '../wiring/diff.js';
import { wantedState } from '../wiring/network.js';
import { emptyObservation } from '../wiring/wire.js';
import { ipv6Contract } from './contracts/ipv6-contract.js';
import type { KernelFixture } from './kernels.js';
import { MemoryKernel } from './memory-kernel.js';
import { MemoryRecordStore } from './memory-record-store.js';
import { limitsContract } from './contracts/limits-contract.js';
import { kernelContract } from './contracts/pod-kernel-contract.js';
import { podSessionContract, SMALL_BOUNDS } from './contracts/pod-session-contract.js';
import { podNetwork } from './pods.js';
import { recordStoreContract, storedRecord } from './contracts/record-store-contract.js';
import { rulesContract } from './contracts/rules-contract.js';

function memoryFixture(): Promise<KernelFixture> {
  const kernel = new MemoryKernel({ podLists: SMALL_BOUNDS });
  kernel.addFile('/etc/file');
  const path = (name: string) => `/run/netns/${name}`;
  return Promise.resolve({
    kernel,
    nodePath: path('node'),
    filePath: '/etc/file',
    addPod: (name) => {
      kernel.addNamespace(path(name));
      return path(name);
    },
    removePod: (name) => kernel.removeNamespace(path(name)),
    setQdisc: (link, { pod }) => {
      const namespace = pod === undefined ? kernel.host : kernel.namespace(path(pod));
      namespace.qdiscs.set(link, { kind: 'pfifo', bucket: undefined });
    },
    addBridge: (name, { pod, alias = '' }) => {
      const namespace = pod === undefined ? kernel.host : kernel.namespace(path(pod));
      const link = namespace.addLink({ name, mac: '02:00:00:00:00:01', mtuBytes: 1500 }, 'bridge');
      namespace.setLink(link, { alias, up: true });
    },
    addFlow: (flow) => void kernel.flows.push(flow),
    flowCount: () => kernel.flows.length,
    destroy: () => kernel.close(),
  });
}

describe('the fake kernel', () => {
  kernelContract(memoryFixture);
});

describe('the fake kernel, in a pod', () => {
  podSessionContract(memoryFixture);
});

describe('the fake kernel, with IPv6', () => {
  ipv6Contract(memoryFixture);
});

describe('the fake kernel, with limits', () => {
  limitsContract(memoryFixture);
});

describe('the fake kernel, with rules', () => {
  rulesContract(memoryFixture);
});

const network = podNetwork('a', { hostInterfaceName: 'podwa', mac: '02:00:00:00:00:07' });
const steps = diff(wantedState(network), emptyObservation());

describe('functions of the fake alone', () => {
  test('it prints itself as `ip` does', async () => {
    const kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    const session = await kernel.open('/run/netns/a');
    await session.apply(steps);
    expect(kernel.print().split('\n')).toEqual([
      '/run/netns/node: link podwa veth address ee:ee:ee:ee:ee:ee mtu 1500 up alias "podwire:net/a/eth0"',
      '/run/netns/node: route 10.65.0.7 dev podwa proto 87 scope link',
      '/run/netns/node: neighbour 10.65.0.7 dev podwa lladdr 02:00:00:00:00:07 nud permanent',
      '/run/netns/node: sysctl net/ipv4/conf/podwa/forwarding=1',
      '/run/netns/node: sysctl net/ipv4/conf/podwa/proxy_arp=1',
      '/run/netns/node: sysctl net/ipv4/conf/podwa/route_localnet=1',
      '/run/netns/node: sysctl net/ipv4/conf/podwa/rp_filter=1',
      '/run/netns/node: sysctl net/ipv4/ip_forward=0',
      '/run/netns/node: sysctl net/ipv4/neigh/podwa/proxy_delay=0',
      '/run/netns/node: sysctl net/ipv6/conf/podwa/accept_ra=0',
      '/run/netns/node: sysctl net/ipv6/conf/podwa/disable_ipv6=1',
      '/run/netns/a: link eth0 veth address 02:00:00:00:00:07 mtu 1500 up',
      '/run/netns/a: address 10.65.0.7 dev eth0',
      '/run/netns/a: route 169.254.1.1 dev eth0 proto 87 scope link',
      '/run/netns/a: route default via 169.254.1.1 dev eth0 proto 87',
      '/run/netns/a: neighbour 169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent',
      '/run/netns/a: sysctl net/ipv4/ip_forward=0',
    ]);
  });

  test('it fails the requested operation once, and reports unused faults', async () => {
    const kernel = new MemoryKernel();
    kernel.failNext('link-get', { errno: 'ENOBUFS', after: 1 });
    await kernel.hostLink('x');
    expect(kernel.unusedFaults).toBe(1);
    await expect(kernel.hostLink('x')).rejects.toMatchObject({ code: 'KERNEL_REFUSED', details: { errno: 'ENOBUFS' } });
    expect(kernel.unusedFaults).toBe(0);
    expect(await kernel.hostLink('x')).toBeUndefined();
  });

  test('it destroys a pod with its wire', async () => {
    const kernel = new MemoryKernel();
    kernel.addNamespace('/run/netns/a');
    const session = await kernel.open('/run/netns/a');
    await session.apply(steps);
    kernel.removeNamespace('/run/netns/a');
    expect(kernel.print()).toBe('/run/netns/node: sysctl net/ipv4/ip_forward=0');
  });
});

describe('records in memory', () => {
  recordStoreContract(() => {
    const store = new MemoryRecordStore();
    return {
      open: () => store,
      corrupt: (text) => [...store.texts.keys()].forEach((key) => store.texts.set(key, text)),
    };
  });

  test('can be full', async () => {
    const store = new MemoryRecordStore();
    store.isFull = true;
    await expect(store.put(storedRecord('a'))).rejects.toMatchObject({ code: 'STATE_IO' });
  });
});
