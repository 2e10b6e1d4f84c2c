import { openNamespace, type Namespace } from '@podwire/netlink';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { Events } from '../pods/events.js';
import { PodWiring } from '../pods/pods.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { address, BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { wantedState } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { NetlinkKernel } from './pod-kernel.js';
import { observeHost, observePod, type Listing, type PodListing } from './pod-observe.js';

/** The cost of reading a pod on a node with routes to a large cluster. */

const CLUSTER_ROUTES = 2000;

let node: Namespace;
let kernel: NetlinkKernel;
let dataplane: PodWiring;

const never = () => new AbortController().signal;

beforeEach(async () => {
  requireThrowawayNamespace();
  [node, kernel] = [await openNamespace(), await NetlinkKernel.open()];
  dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
  run('ip', 'link', 'add', 'up0', 'type', 'bridge');
  run('ip', 'link', 'set', 'up0', 'up');
  const outcomes = await node.batch(
    Array.from({ length: CLUSTER_ROUTES }, (_, number) => ({
      type: 'route.add',
      destination: number % 2 ? `10.${100 + (number >> 8)}.${number & 255}.0/26` : `fd65:${number.toString(16)}::/122`,
      output: { name: 'up0' },
      protocol: 87,
    })),
  );
  expect(outcomes.filter(({ ok }) => !ok)).toEqual([]);
  addPod('a');
});

afterEach(async () => {
  await Promise.all([node.close(), kernel.close()]);
  cleanUp();
});

/** Reads the node's end of a pod, and counts the routes that the kernel returned. */
async function read(network: PodNetwork) {
  const count = { lists: 0, routes: 0 };
  const counting: Listing = {
    addresses: (filter) => node.addresses(filter),
    neighbours: (filter) => node.neighbours(filter),
    readSysctls: (keys) => node.readSysctls(keys),
    sequence: (steps) => node.sequence(steps),
    routes: async (filter) => {
      const routes = await node.routes(filter);
      count.lists++;
      count.routes += routes.length;
      return routes;
    },
  };
  const { routes } = await observeHost(counting, wantedState(network).host);
  return { count, routes: routes.map(({ destination, device }) => `${destination} ${device ?? ''}`).sort() };
}

test('a pod of IPv4 needs one short list; IPv6 needs another, of routes to its address', async () => {
  const network = podNetwork('a', BY_FAMILY.IPv4);
  await dataplane.attach(network, never());
  const device = network.hostInterfaceName;
  // The link's own routes: its family's, and the kernel's two of IPv6.
  expect(await read(network)).toEqual({
    count: { lists: 1, routes: expect.toSatisfy((routes: number) => routes < 5) },
    routes: [`10.65.0.7/32 ${device}`],
  });
  const dual = podNetwork('a', BY_FAMILY['both families']);
  await dataplane.attach(dual, never());
  expect(await read(dual)).toEqual({
    count: { lists: 2, routes: expect.toSatisfy((routes: number) => routes < 7) },
    routes: [`10.65.0.7/32 ${device}`, `fd65::7/128 ${device}`],
  });
});

test('routes that conflict with a pod’s, or precede them, are observed', async () => {
  const dual = podNetwork('a', BY_FAMILY['both families']);
  run('ip', 'route', 'add', '10.65.0.7', 'dev', 'up0');
  run('ip', '-6', 'route', 'add', 'fd65::7', 'dev', 'up0', 'metric', '7');
  const inTheWay = ['10.65.0.7/32 up0', 'fd65::7/128 up0'];
  expect((await read(dual)).routes).toEqual(inTheWay);
  run('ip', 'route', 'delete', '10.65.0.7', 'dev', 'up0');
  await dataplane.attach({ ...dual, addresses: dual.addresses.slice(0, 1) }, never());
  const device = dual.hostInterfaceName;
  expect((await read(dual)).routes).toEqual([`10.65.0.7/32 ${device}`, 'fd65::7/128 up0']);
  expect((await dataplane.check(dual, never()))[0]).toMatchObject({ actual: 'by up0' });
  run('ip', 'route', 'delete', '10.65.0.7');
  run('ip', 'route', 'add', 'blackhole', '10.65.0.7');
  expect((await read(dual)).routes).toEqual(['10.65.0.7/32 ', 'fd65::7/128 up0']);
  run('ip', 'route', 'delete', 'blackhole', '10.65.0.7');
});

test('the root qdisc is read only where the link has a tbf', async () => {
  const unlimited = podNetwork('a');
  const asked: string[] = [];
  const listing: Listing = {
    addresses: (filter) => node.addresses(filter),
    neighbours: (filter) => node.neighbours(filter),
    readSysctls: (keys) => node.readSysctls(keys),
    routes: (filter) => node.routes(filter),
    sequence: (steps) => {
      asked.push(...steps.map(({ type }) => type));
      return node.sequence(steps);
    },
  };
  const count = async (network: PodNetwork) => {
    asked.length = 0;
    await observeHost(listing, wantedState(network).host);
    return asked.filter((type) => type === 'qdisc.get').length;
  };
  await dataplane.attach(unlimited, never());
  expect(await count(unlimited)).toBe(0);
  const limit = { rateBitsPerSecond: 1_000_000, burstBits: undefined };
  const limited = { ...unlimited, bandwidth: { ingress: limit } };
  expect(await count(limited)).toBe(0);
  await dataplane.attach(limited, never());
  expect(await count(limited)).toBe(1);
});

test('the rules of a pod with one interface are not read, the rules of a pod with two once', async () => {
  const first = podNetwork('a', BY_FAMILY['both families']);
  const second = podNetwork('a', {
    addresses: [address('10.66.0.7')],
    attachment: { ...first.attachment, interfaceName: 'net1' },
    hostInterfaceName: 'podwsecond',
  });
  await dataplane.attach(first, never());
  const pod = await openNamespace('/run/netns/a');
  const readPod = async (network: PodNetwork) => {
    const asked: string[] = [];
    const noting = <Args extends readonly unknown[], Answer>(name: string, call: (...args: Args) => Answer) => {
      return (...args: Args): Answer => {
        asked.push(name);
        return call(...args);
      };
    };
    const listing: PodListing = {
      addresses: noting('addresses', (filter) => pod.addresses(filter)),
      neighbours: noting('neighbours', (filter) => pod.neighbours(filter)),
      routes: noting('routes', (filter) => pod.routes(filter)),
      rules: noting('rules', (filter) => pod.rules(filter)),
      readSysctls: noting('sysctls', (keys) => pod.readSysctls(keys)),
      sequence: noting('sequence', (steps) => pod.sequence(steps)),
    };
    await observePod(listing, wantedState(network).pod);
    return asked.filter((name) => name === 'routes' || name === 'rules');
  };
  expect(await readPod(first)).toEqual(['routes']);
  await dataplane.attach(second, never());
  expect([await readPod(first), await readPod(second)]).toEqual([['routes'], ['routes', 'rules']]);
  await pod.close();
});
