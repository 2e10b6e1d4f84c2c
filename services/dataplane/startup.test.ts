import { TunnelKind } from '@podwire/proto/podwire/ipam/v1/node';
import { PoolState } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { NodeSide } from './startup.js';
import {
  FakeIpam,
  FakeNodeNetwork,
  FREE_NAME,
  nodeMessage,
  poolMessage,
  routeMessage,
  vxlanPool,
} from './testing/ipam.js';
import { recordingLog } from './testing/pods.js';
import { configOf } from './testing/service.js';

const TIMEOUT_MS = 60_000;
vi.setConfig({ testTimeout: TIMEOUT_MS, hookTimeout: TIMEOUT_MS });

const poll = (condition: () => unknown) => expect.poll(condition, { timeout: TIMEOUT_MS });

let network: FakeNodeNetwork;
let peer: Peer;
let side: NodeSide;
let lines: Record<string, unknown>[];

function make(address: string): void {
  network = new FakeNodeNetwork({ eth0: ['192.0.2.7/24'], podw1: ['10.65.0.3/32'], docker0: ['172.17.0.1/16'] });
  const { log, lines: written } = recordingLog();
  lines = written;
  peer = new Peer('podwire-ipam', address);
  const config = configOf({}, 'n1');
  const deps = { log, clock: systemClock, random: () => 0.01 };
  side = new NodeSide({ config, deps, network, name: FREE_NAME, ipam: peer });
}

const reasons = () => side.conditions().map(({ reason }) => reason);
const TUNNEL = TunnelKind.TUNNEL_KIND_VXLAN_IPV4;

describe('with a fake IPAM', () => {
  let ipam: FakeIpam;

  beforeEach(() => {
    ipam = new FakeIpam();
    make(ipam.address);
  });

  afterEach(async () => {
    await side.stop();
    peer.close();
    await ipam.dispose();
  });

  test('a node registers once, with its own interfaces and the MAC addresses of its tunnels', async () => {
    await ipam.start();
    side.start();
    await poll(() => ipam.registrations.length).toBe(1);
    expect(ipam.registrations[0]).toEqual({
      name: 'n1',
      ipv4Address: '192.0.2.7/24',
      ipv6Address: '',
      labels: {},
      interfaces: [{ name: 'eth0', addresses: ['192.0.2.7/24'] }],
    });
    network.set({ eth0: ['192.0.2.7/24'], podw2: ['10.65.0.4/32'] });
    const { reads } = network;
    await poll(() => network.reads).toBeGreaterThan(reads);
    network.set({ eth0: ['192.0.2.7/24', '2001:db8::7/64'] });
    await poll(() => ipam.registrations.at(-1)?.ipv6Address).toBe('2001:db8::7/64');
    expect(ipam.registrations).toHaveLength(2);
  });

  test('a registration is retried until it succeeds, also when the kernel fails or IPAM starts late', async () => {
    network.failures.push(new Failure('KERNEL_REFUSED', 'no'));
    for (let count = 0; count < 3; count++)
      ipam.refusals.push({ method: 'RegisterNode', failure: new Failure('NODE_BEING_DELETED', 'wait') });
    side.start();
    await poll(() => network.reads).toBeGreaterThan(1);
    await ipam.start();
    await poll(() => ipam.registrations.length).toBe(1);
    expect([ipam.refusals, network.failures]).toEqual([[], []]);
    expect(lines.filter(({ msg }) => String(msg).startsWith('register-node: failed'))).toHaveLength(4);
  });

  test('a deleted node registers again', async () => {
    await ipam.start();
    side.start();
    await poll(() => ipam.registrations.length).toBe(1);
    await poll(reasons).toEqual([]);
    ipam.remove('node', 'n1');
    await poll(() => ipam.registrations.length).toBe(2);
  });

  test('a node without an address is a condition, and registers once it has one', async () => {
    await ipam.start();
    network.set({ docker0: ['172.17.0.1/16'] });
    side.start();
    await poll(reasons).toEqual(['NodeAddressMissing']);
    expect(ipam.registrations).toEqual([]);
    network.set({ eth0: ['192.0.2.7/24'] });
    await poll(() => ipam.registrations.length).toBe(1);
    expect(reasons()).not.toContain('NodeAddressMissing');
    // The registration stays unchanged after the last address is gone.
    network.set({});
    await poll(reasons).toEqual(['NodeAddressMissing']);
    expect(ipam.registrations).toHaveLength(1);
  });

  test('a tunnel has an address while a pool is encapsulated', async () => {
    await ipam.start();
    side.start();
    await poll(() => ipam.registrations.length).toBe(1);
    expect(ipam.calls).not.toContain(`AllocateTunnelAddress ${TUNNEL}`);
    ipam.refusals.push({ method: 'AllocateTunnelAddress', failure: new Failure('POOLS_EXHAUSTED', 'none left') });
    ipam.putPool(vxlanPool('p', '10.65.0.0/16'));
    await poll(() => ipam.node('n1')?.tunnels).toMatchObject([{ kind: TUNNEL, address: '10.65.0.92' }]);
    expect(ipam.calls.filter((call) => call.startsWith('AllocateTunnel'))).toHaveLength(2);
    // Disabled: its pods still need the tunnel.
    ipam.putPool(vxlanPool('p', '10.65.0.0/16', { state: PoolState.POOL_STATE_DISABLED }));
    ipam.putPool(poolMessage('q', '10.66.0.0/16'));
    await poll(() => lines.filter(({ msg }) => String(msg).includes('released')).length).toBe(0);
    expect(ipam.node('n1')?.tunnels).toHaveLength(1);
    ipam.remove('pool', 'p');
    await poll(() => ipam.node('n1')?.tunnels).toEqual([]);
    expect(ipam.calls.at(-1)).toBe(`ReleaseTunnelAddress ${TUNNEL}`);
  });

  test('the address of the last pool of its encapsulation is released once the node has no other address of it', async () => {
    ipam.putPool(vxlanPool('p', '10.65.0.0/16'));
    await ipam.start();
    side.start();
    const address = '10.65.0.92';
    await poll(() => ipam.node('n1')?.tunnels).toMatchObject([{ kind: TUNNEL, address }]);
    const looks = () => ipam.calls.filter((call) => call === 'ListBlocks p n1').length;
    /** One check more than the check that sees the change, which has ended then. */
    const lookedAfter = async (change: () => void) => {
      for (const again of ['once', 'twice']) {
        const before = looks();
        change();
        ipam.putPool(poolMessage(again, '10.66.0.0/16', { state: PoolState.POOL_STATE_DISABLED }));
        await poll(() => looks() - before).toBeGreaterThan(1);
      }
    };
    const draining = vxlanPool('p', '10.65.0.0/16', { state: PoolState.POOL_STATE_DRAINING });
    ipam.held.set('p', ['10.65.0.3', address]);
    await lookedAfter(() => ipam.putPool(draining));
    expect(ipam.node('n1')?.tunnels).toHaveLength(1);

    // No pod uses the node's own block, and one uses an address of another node's block.
    ipam.put({
      $case: 'route',
      value: routeMessage('10.65.1.0/26', 'n2', { borrowed: [{ address: '10.65.1.7', nodeName: 'n1' }] }),
    });
    await lookedAfter(() => ipam.held.set('p', [address]));
    expect(ipam.node('n1')?.tunnels).toHaveLength(1);

    ipam.remove('route', '10.65.1.0/26');
    ipam.putPool(poolMessage('q', '10.67.0.0/16'));
    await poll(() => ipam.node('n1')?.tunnels).toEqual([]);
    expect(ipam.calls.at(-1)).toBe(`ReleaseTunnelAddress ${TUNNEL}`);
  });

  test('an address is released when its pool’s encapsulation is disabled', async () => {
    ipam.putPool(vxlanPool('p', '10.65.0.0/16'));
    await ipam.start();
    side.start();
    await poll(() => ipam.node('n1')?.tunnels).toHaveLength(1);
    ipam.putPool(poolMessage('p', '10.65.0.0/16'));
    await poll(() => ipam.node('n1')?.tunnels).toEqual([]);
  });

  test('an address that the node has is confirmed once after a start, and replaced when its pool is disabled', async () => {
    ipam.putPool(vxlanPool('p', '10.65.0.0/16'));
    ipam.putNode(
      nodeMessage('n1', '192.0.2.7/24', { tunnels: [{ kind: TUNNEL, address: '10.65.0.92', macAddress: '' }] }),
    );
    await ipam.start();
    side.start();
    const allocations = () => ipam.calls.filter((call) => call.startsWith('AllocateTunnel')).length;
    await poll(allocations).toBe(1);
    ipam.putPool(poolMessage('q', '10.67.0.0/16'));
    ipam.putPool(vxlanPool('r', '10.66.0.0/16'));
    ipam.putPool(vxlanPool('p', '10.65.0.0/16', { state: PoolState.POOL_STATE_DISABLED }));
    await poll(() => ipam.node('n1')?.tunnels).toMatchObject([{ address: '10.66.0.92' }]);
    expect(allocations()).toBe(2);
  });

  test('stopping leaves nothing open, also while IPAM is unreachable', async () => {
    side.start();
    await poll(() => network.listenersCount).toBe(1);
    await side.stop();
    expect([network.listenersCount, network.isClosed]).toEqual([0, true]);
  });
});
