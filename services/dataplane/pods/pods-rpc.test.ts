import { DetachPodRequest, type PodNetwork as PodNetworkMessage } from '@podwire/proto/podwire/dataplane/v1/pod';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { readChecked } from '@podwire/shared/requests/checks';
import { LOCAL_CALLER } from '@podwire/shared/tls/caller';
import { beforeEach, describe, expect, test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import { Events } from './events.js';
import { bandwidthMessage, detachPod, differencesMessage, readPodNetwork } from './pods-rpc.js';
import { PodWiring } from './pods.js';

let kernel: MemoryKernel;
let dataplane: PodWiring;

beforeEach(() => {
  kernel = new MemoryKernel();
  dataplane = new PodWiring({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
});

async function detach(rest: Partial<DetachPodRequest>) {
  const { attachment } = podNetwork('a');
  const call = { signal: new AbortController().signal, caller: LOCAL_CALLER };
  return detachPod(dataplane)(DetachPodRequest.fromPartial({ attachment, ...rest }), call);
}

test.each([undefined, '/run/netns/a', '/run/netns/gone'])(
  'a detach accepts a namespace that is absent, present or gone: %s',
  async (netns) => {
    expect(await detach({ netns })).toEqual({ removed: false });
  },
);

test.each([
  ['', /empty/],
  ['relative', /not an absolute path/],
  ['/run/\0', /zero byte/],
])('an invalid namespace path is refused: %j', async (netns, reason) => {
  await expect(detach({ netns })).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
    violations: [{ field: 'netns', reason: expect.stringMatching(reason) }],
  });
});

const differences = (count: number) =>
  Array.from({ length: count }, (_, number) => ({
    object: `pod route ${number}`,
    wanted: 'absent',
    actual: 'present',
  }));

test('an answer has the first 100 differences, and the number of the rest', () => {
  expect(differencesMessage([])).toEqual({ differences: [], moreDifferences: 0 });
  expect(differencesMessage(differences(100))).toEqual({ differences: differences(100), moreDifferences: 0 });
  expect(differencesMessage(differences(4000))).toEqual({ differences: differences(100), moreDifferences: 3900 });
});

const good = (): PodNetworkMessage => ({
  attachment: { network: 'net', containerId: 'abc', interfaceName: 'eth0' },
  netns: '/run/netns/abc',
  hostInterfaceName: 'podw0123',
  macAddress: '02:00:00:00:00:01',
  addresses: ['10.65.0.7/32'],
  routes: [],
  mtuBytes: 0,
  ipForwarding: false,
  sourcePrefixes: [],
  hostPorts: [],
  txQueueLength: 0,
  queueCount: 0,
});

const read = (message: PodNetworkMessage | undefined) =>
  readChecked('Test', (checks) => readPodNetwork(message, checks));

/** Refused fields, each with the reason. */
function violations(message: PodNetworkMessage | undefined): Record<string, string> {
  try {
    read(message);
    return {};
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    expect(error.code).toBe('INVALID_REQUEST');
    return Object.fromEntries(error.violations.map(({ field, reason }) => [field, reason]));
  }
}

describe('a pod', () => {
  test('is read; omitted fields get their defaults', () => {
    const { addresses, routes, ...rest } = read(good());
    expect(rest).toEqual({
      attachment: good().attachment,
      netns: '/run/netns/abc',
      hostInterfaceName: 'podw0123',
      mac: '02:00:00:00:00:01',
      mtuBytes: undefined,
      ipForwarding: false,
      sourcePrefixes: [],
      hostPorts: [],
      txQueueLength: undefined,
      queueCount: undefined,
    });
    expect(addresses.map(formatAddress)).toEqual(['10.65.0.7']);
    expect(routes.map(formatPrefix)).toEqual(['0.0.0.0/0']);
  });

  test('of IPv6, or of both families, is read; each family gets its default route', () => {
    const routesOf = (addresses: string[]) => read({ ...good(), addresses }).routes.map(formatPrefix);
    expect(routesOf(['FD65:0::7/128'])).toEqual(['::/0']);
    expect(routesOf(['fd65::7/128', '10.65.0.7/32'])).toEqual(['0.0.0.0/0', '::/0']);
    const { addresses } = read({ ...good(), addresses: ['FD65:0::7/128', '10.65.0.7/32'] });
    expect(addresses.map(formatAddress)).toEqual(['fd65::7', '10.65.0.7']);
  });

  test('keeps its limits, and has none without a direction', () => {
    const bandwidth = { ingress: { rateBitsPerSecond: 10n ** 15n, burstBits: 0n } };
    const limits = { ingress: { rateBitsPerSecond: 10 ** 15, burstBits: undefined } };
    expect(read({ ...good(), bandwidth }).bandwidth).toEqual(limits);
    expect(bandwidthMessage(limits)).toEqual({ ...bandwidth, egress: undefined });
    expect(read({ ...good(), bandwidth: {} })).not.toHaveProperty('bandwidth');
  });

  test('keeps the given values', () => {
    const message = {
      ...good(),
      mtuBytes: 68,
      ipForwarding: true,
      routes: ['10.0.0.0/8'],
      macAddress: '02:00:00:00:00:AB',
      sourcePrefixes: ['192.0.2.0/24', '0.0.0.0/0'],
      txQueueLength: 500,
      queueCount: 4096,
      addressesFromIpam: true,
    };
    const { routes, sourcePrefixes, ...rest } = read(message);
    expect(rest).toMatchObject({ mtuBytes: 68, ipForwarding: true, mac: '02:00:00:00:00:ab' });
    expect(rest).toMatchObject({ txQueueLength: 500, queueCount: 4096, addressesFromIpam: true });
    expect(sourcePrefixes.map(formatPrefix)).toEqual(['192.0.2.0/24', '0.0.0.0/0']);
    expect(routes.map(formatPrefix)).toEqual(['10.0.0.0/8']);
  });

  test.each<readonly [string, Partial<PodNetworkMessage>, RegExp]>([
    ['pod.attachment', { attachment: undefined }, /missing/],
    ['pod.attachment.network', { attachment: { network: '../x', containerId: 'a', interfaceName: 'eth0' } }, /letter/],
    ['pod.attachment.container_id', { attachment: { network: 'n', containerId: '', interfaceName: 'eth0' } }, /empty/],
    [
      'pod.attachment.interface_name',
      { attachment: { network: 'n', containerId: 'a', interfaceName: 'lo' } },
      /loopback/,
    ],
    [
      'pod.attachment.interface_name',
      { attachment: { network: 'n', containerId: 'a', interfaceName: '..' } },
      /directory/,
    ],
    ['pod.netns', { netns: '' }, /empty/],
    ['pod.netns', { netns: 'run/netns/a' }, /not an absolute path/],
    ['pod.netns', { netns: '/run/\0' }, /zero byte/],
    ['pod.host_interface_name', { hostInterfaceName: '' }, /empty/],
    ['pod.host_interface_name', { hostInterfaceName: 'lo' }, /loopback/],
    ['pod.host_interface_name', { hostInterfaceName: 'x'.repeat(16) }, /longer than 15 bytes/],
    ['pod.host_interface_name', { hostInterfaceName: 'ü'.repeat(8) }, /longer than 15 bytes/],
    ['pod.host_interface_name', { hostInterfaceName: 'a b' }, /white space/],
    ['pod.mac_address', { macAddress: '' }, /MAC/],
    ['pod.mac_address', { macAddress: '01:00:00:00:00:01' }, /not a unicast/],
    ['pod.mac_address', { macAddress: '00:00:00:00:00:00' }, /not a unicast/],
    ['pod.mtu_bytes', { mtuBytes: 67 }, /68 to 65535/],
    ['pod.mtu_bytes', { mtuBytes: 65_536 }, /68 to 65535/],
    ['pod.addresses', { addresses: [] }, /empty/],
    ['pod.addresses[0]', { addresses: ['10.65.0.7'] }, /not a CIDR/],
    ['pod.addresses[0]', { addresses: ['10.65.0.7/24'] }, /length has to be 32/],
    ['pod.addresses[0]', { addresses: ['fd65::7'] }, /not a CIDR/],
    ['pod.addresses[0]', { addresses: ['fd65::7/64'] }, /length has to be 128/],
    ['pod.addresses[0]', { addresses: ['::/128'] }, /represent IPv4/],
    ['pod.addresses[0]', { addresses: ['::1/128'] }, /loopback/],
    ['pod.addresses[0]', { addresses: ['::10.65.0.7/128'] }, /not a CIDR/],
    ['pod.addresses[0]', { addresses: ['::ffff:10.65.0.7/128'] }, /not a CIDR/],
    ['pod.addresses[0]', { addresses: ['fe80::ecee:eeff:feee:eeee/128'] }, /gateway/],
    ['pod.addresses[0]', { addresses: ['ff02::1/128'] }, /multicast/],
    ['pod.addresses[0]', { addresses: ['fd65::7%eth0/128'] }, /not a CIDR/],
    ['pod.addresses[0]', { addresses: ['127.0.0.1/32'] }, /loopback/],
    ['pod.addresses[0]', { addresses: ['0.0.0.0/32'] }, /this network/],
    ['pod.addresses[0]', { addresses: ['169.254.1.1/32'] }, /gateway/],
    ['pod.addresses[0]', { addresses: ['224.0.0.1/32'] }, /multicast/],
    ['pod.addresses[0]', { addresses: ['255.255.255.255/32'] }, /broadcast/],
    ['pod.addresses[1]', { addresses: ['10.65.0.7/32', '10.65.0.7/32'] }, /repeats \[0\]/],
    ['pod.routes[0]', { routes: ['10.0.0.1/8'] }, /host bits/],
    ['pod.routes[0]', { routes: ['nowhere'] }, /not a CIDR/],
    ['pod.routes[0]', { routes: ['::/0'] }, /IPv6, but the pod has no IPv6 address/],
    ['pod.routes[0]', { addresses: ['fd65::7/128'], routes: ['10.0.0.0/8'] }, /IPv4, but the pod has no IPv4 address/],
    ['pod.routes[0]', { addresses: ['fd65::7/128'], routes: ['fe80::ecee:eeff:feee:eeee/128'] }, /the gateway itself/],
    ['pod.routes[0]', { addresses: ['fd65::7/128'], routes: ['fe80::/64'] }, /cannot be routed through a gateway/],
    ['pod.routes[0]', { addresses: ['fd65::7/128'], routes: ['ff00::/8'] }, /cannot be routed through a gateway/],
    ['pod.routes[0]', { addresses: ['fd65::7/128'], routes: ['::/96'] }, /cannot be routed through a gateway/],
    ['pod.routes[0]', { routes: ['169.254.1.1/32'] }, /gateway itself/],
    ['pod.mtu_bytes', { addresses: ['fd65::7/128'], mtuBytes: 1279 }, /1280 to 65535 for a pod with IPv6/],
    ['pod.queue_count', { queueCount: 4097 }, /1 to 4096/],
    ['pod.source_prefixes[0]', { sourcePrefixes: ['10.0.0.1/8'] }, /host bits/],
    ['pod.source_prefixes[0]', { sourcePrefixes: ['fd00::/8'] }, /IPv6, but the pod has no IPv6 address/],
    ['pod.source_prefixes[0]', { sourcePrefixes: ['127.0.0.0/8'] }, /loopback/],
    ['pod.source_prefixes[1]', { sourcePrefixes: ['10.0.0.0/8', '10.0.0.0/8'] }, /repeats \[0\]/],
    ['pod.routes[1]', { routes: ['10.0.0.0/8', '10.0.0.0/8'] }, /repeats \[0\]/],
  ])('is refused for %s in %j', (field, change, reason) => {
    const found = violations({ ...good(), ...change });
    expect(Object.keys(found)).toEqual([field]);
    expect(found[field]).toMatch(reason);
  });

  test('is refused for limits out of range', () => {
    const ingress = { rateBitsPerSecond: 999n, burstBits: 0n };
    const egress = { rateBitsPerSecond: 1000n, burstBits: 34_359_738_361n };
    expect(violations({ ...good(), bandwidth: { ingress, egress } })).toEqual({
      'pod.bandwidth.ingress.rate_bits_per_second': expect.stringContaining('from 1000 to'),
      'pod.bandwidth.egress.burst_bits': expect.stringContaining('to 34359738360'),
    });
  });

  test('with several faults is refused with all of them', () => {
    const wrong = {
      attachment: undefined,
      netns: 'x',
      hostInterfaceName: '',
      macAddress: 'x',
      addresses: ['x'],
      routes: ['x'],
      mtuBytes: 1,
      ipForwarding: false,
      sourcePrefixes: ['x'],
      hostPorts: [{ protocol: 'icmp', hostPort: 0, podPort: 65_536, hostAddress: 'x' }],
      txQueueLength: 0,
      queueCount: 5000,
    };
    expect(Object.keys(violations(wrong)).sort()).toEqual([
      'pod.addresses[0]',
      'pod.attachment',
      'pod.host_interface_name',
      'pod.host_ports[0].host_address',
      'pod.host_ports[0].host_port',
      'pod.host_ports[0].pod_port',
      'pod.host_ports[0].protocol',
      'pod.mac_address',
      'pod.mtu_bytes',
      'pod.netns',
      'pod.queue_count',
      'pod.routes[0]',
      'pod.source_prefixes[0]',
    ]);
  });

  test('that is missing is one violation', () => {
    expect(violations(undefined)).toEqual({ pod: 'is missing' });
  });
});
