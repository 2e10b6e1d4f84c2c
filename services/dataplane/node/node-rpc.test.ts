import { GetNodeStatusResponse, RoutingState } from '@podwire/proto/podwire/dataplane/v1/node';
import { expect, test } from 'vitest';

import { vxlan } from '../testing/kernels.js';
import { statusMessage, type NodeOverview } from './node-rpc.js';

const session = {
  name: 'podwire_bgp_10.0.0.2',
  about: 'node b',
  family: 4,
  local: '10.0.0.1',
  localAs: 64512,
  neighbour: '10.0.0.2',
  neighbourAs: 64512,
  port: 179,
  password: 'secret',
  passive: false,
  bfd: undefined,
  clientOf: undefined,
} as const;

const overview: NodeOverview = {
  nodeName: 'n1',
  registered: { ipv4Address: '10.0.0.1/24', ipv6Address: '' },
  routing: 'bird',
  routes: {
    state: 'reconciling',
    tunnels: [vxlan, { kind: 'ipip', name: 'ipip.podwire', local: '10.0.0.1', mtuBytes: 1480, address: undefined }],
    wanted: { tunnels: 2, peers: 3, routes: 4 },
    present: { tunnels: 1, peers: 2, routes: 3 },
    conditions: [],
    checkedAtMs: 1_700_000_000_000,
    driftCount: 5,
  },
  podMtuBytes: 1450,
  sessions: [{ session, state: undefined }],
  attachmentCount: 7,
  podRepairCount: 4,
  leases: { leaseCount: 11, unboundCount: 2, unreturnedCount: 1 },
  conditions: [{ reason: 'BirdUnreachable', message: 'see that it runs' }],
};

test('every field survives encoding, and passwords are omitted', () => {
  const bytes = GetNodeStatusResponse.encode(statusMessage(overview)).finish();
  expect(Buffer.from(bytes).includes('secret')).toBe(false);
  expect(GetNodeStatusResponse.decode(bytes)).toEqual({
    nodeName: 'n1',
    ipv4Address: '10.0.0.1/24',
    ipv6Address: '',
    routing: 'bird',
    tunnels: [
      { name: 'vxlan4.podwire', kind: 'vxlan', address: '10.65.0.1/32', macAddress: vxlan.mac, mtuBytes: 1450 },
      { name: 'ipip.podwire', kind: 'ipip', address: '', macAddress: '', mtuBytes: 1480 },
    ],
    routingState: RoutingState.ROUTING_STATE_RECONCILING,
    wanted: { tunnels: 2, peers: 3, routes: 4 },
    present: { tunnels: 1, peers: 2, routes: 3 },
    checkedAt: new Date(1_700_000_000_000),
    driftCount: 5n,
    podMtuBytes: 1450,
    bgpSessions: [{ neighbour: '10.0.0.2', about: 'node b', state: '', importedCount: 0, exportedCount: 0 }],
    attachmentCount: 7,
    podRepairCount: 4n,
    leaseCount: 11,
    unboundCount: 2,
    unreturnedCount: 1,
    conditions: [{ reason: 'BirdUnreachable', message: 'see that it runs' }],
  });
});

test('a node without a cluster reports only its pods', () => {
  const alone = { ...overview, registered: undefined, routes: undefined, sessions: [], conditions: [] };
  expect(statusMessage(alone)).toMatchObject({ ipv4Address: '', attachmentCount: 7, wanted: undefined });
});
