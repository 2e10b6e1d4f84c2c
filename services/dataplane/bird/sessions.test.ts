import { describe, expect, test } from 'vitest';

import { cluster, node } from '../testing/routes.js';
import { ReplyReader } from './control-socket.js';
import { FULL_MESH, type ConfiguredPeer, type PeerPlan } from './peers-file.js';
import { isReflector, readSessions, sessionsOf } from './sessions.js';

const A = node('a', { ipv4: '192.0.2.1/24', ipv6: '2001:db8::1/64' });
const B = node('b', { ipv4: '192.0.2.2/24', ipv6: '2001:db8::2/64' });
const C = node('c', { ipv4: '192.0.2.3/24', asNumber: 65_003 });
const D = node('d', { ipv4: '192.0.2.4/24' });
const ALL = [D, C, B, A];

const TOR: ConfiguredPeer = {
  name: 'tor',
  nodes: ['a', 'b'],
  address: '192.0.2.254',
  asNumber: 65_001,
  port: 1179,
  sourceAddress: undefined,
  password: 'hush',
  passive: true,
  bfd: { intervalMs: 300, multiplier: 3, multihop: false },
};

function texts(self: typeof A, plan: PeerPlan = FULL_MESH, nodes = ALL): string[] {
  return sessionsOf(self, cluster({ nodes }), { asNumber: 64_512, plan }).map((session) => {
    const client = session.clientOf === undefined ? '' : ` client of ${session.clientOf}`;
    return `${session.about}: ${session.local} as ${session.localAs} to ${session.neighbour} as ${session.neighbourAs}${client}`;
  });
}

describe('full mesh', () => {
  test('with every other node, over each common family, with their autonomous systems', () => {
    expect(texts(A)).toEqual([
      'node b: 192.0.2.1 as 64512 to 192.0.2.2 as 64512',
      'node c: 192.0.2.1 as 64512 to 192.0.2.3 as 65003',
      'node d: 192.0.2.1 as 64512 to 192.0.2.4 as 64512',
      'node b: 2001:db8::1 as 64512 to 2001:db8::2 as 64512',
    ]);
    expect(texts(C)).toContain('node a: 192.0.2.3 as 65003 to 192.0.2.1 as 64512');
  });

  test('not with a stale registration of this node’s address, nor twice with one address', () => {
    const stale = node('0-old-a', { ipv4: '192.0.2.1/24' });
    const twin = node('z-twin', { ipv4: '192.0.2.4/24' });
    expect(texts(D, FULL_MESH, [D, A, stale, twin])).toHaveLength(1);
    expect(texts(A, FULL_MESH, [D, A, stale, twin])).toEqual(['node d: 192.0.2.1 as 64512 to 192.0.2.4 as 64512']);
  });
});

describe('route reflectors', () => {
  const plan: PeerPlan = {
    mesh: false,
    routeReflectors: [
      { nodes: ['a', 'b'], clusterId: '10.0.0.1' },
      { nodes: ['x'], clusterId: '10.0.0.2' },
    ],
    peers: [],
  };

  test('have clients, but not one another, nor another autonomous system', () => {
    expect(texts(A, plan)).toEqual([
      'node b: 192.0.2.1 as 64512 to 192.0.2.2 as 64512',
      'node c: 192.0.2.1 as 64512 to 192.0.2.3 as 65003',
      'node d: 192.0.2.1 as 64512 to 192.0.2.4 as 64512 client of 10.0.0.1',
      'node b: 2001:db8::1 as 64512 to 2001:db8::2 as 64512',
    ]);
    expect([isReflector(A, plan), isReflector(D, plan)]).toEqual([true, false]);
  });

  test('are the only peers of other nodes', () => {
    expect(texts(D, plan)).toEqual([
      'node a: 192.0.2.4 as 64512 to 192.0.2.1 as 64512',
      'node b: 192.0.2.4 as 64512 to 192.0.2.2 as 64512',
    ]);
  });
});

describe('configured peers', () => {
  test('apply to the nodes that they name, with every configured value', () => {
    const plan = { ...FULL_MESH, mesh: false, peers: [TOR] };
    expect(sessionsOf(A, cluster({ nodes: ALL }), { asNumber: 64_512, plan })).toEqual([
      {
        name: 'podwire_bgp_192.0.2.254',
        about: 'peer tor',
        family: 4,
        local: '192.0.2.1',
        localAs: 64_512,
        neighbour: '192.0.2.254',
        neighbourAs: 65_001,
        port: 1179,
        password: 'hush',
        passive: true,
        bfd: TOR.bfd,
        clientOf: undefined,
      },
    ]);
    expect(texts(D, plan)).toEqual([]);
  });

  test('use the configured source address, and need one of the family', () => {
    const six = { ...TOR, name: 'six', address: '2001:db8::fe', nodes: ['*'] };
    const plan = { ...FULL_MESH, mesh: false, peers: [{ ...TOR, sourceAddress: '192.0.2.77' }, six] };
    expect(texts(B, plan)[0]).toContain('192.0.2.77 as 64512 to 192.0.2.254');
    expect(texts(D, plan)).toEqual([]);
  });

  test('replace the node that has their address', () => {
    const plan = { ...FULL_MESH, peers: [{ ...TOR, address: '192.0.2.4' }] };
    expect(texts(A, plan, [A, D])).toEqual(['peer tor: 192.0.2.1 as 64512 to 192.0.2.4 as 65001']);
  });
});

/** `show protocols all` of BIRD 2.0.12, shortened: two established peers, one that refuses, one that never answered, and other protocols. */
const CAPTURE = `2002-Name       Proto      Table      State  Since         Info
1002-podwire_device Device     ---        up     2026-11-21 17:56:05  
1006-
1002-podwire_bgp_192.0.2.2 BGP        ---        up     2026-11-21 17:56:06  Established   
1006-  Description:    node n2
       BGP state:          Established
         Neighbor address: 192.0.2.2
       Channel ipv4
         State:          UP
         Routes:         1 imported, 2 exported, 1 preferred
     
1002-podwire_bgp_2001:db8::2 BGP        ---        up     2026-11-21 17:56:07  Established   
1006-  BGP state:          Established
       Channel ipv6
         Routes:         3 imported, 4 filtered, 5 exported, 1 preferred
     
1002-podwire_bgp_192.0.2.3 BGP        ---        start  2026-11-21 17:56:13  Active        Socket: Connection refused
1006-  BGP state:          Active
         Neighbor address: 192.0.2.3
         Last error:       Socket: Connection refused
     
1002-podwire_bgp_192.0.2.9 BGP        ---        start  2026-11-21 17:56:05  Connect       
1006-  BGP state:          Connect
     
1002-theirs BGP        ---        up     2026-11-21 17:56:06  Established   
1006-  BGP state:          Established
     
0000 
`;

test('sessions are read with their state, its reason, and the routes they carry', () => {
  const [reply] = new ReplyReader().push(CAPTURE);
  expect(reply && readSessions(reply)).toEqual([
    {
      name: 'podwire_bgp_192.0.2.2',
      state: 'Established',
      isEstablished: true,
      since: '2026-11-21 17:56:06',
      reason: undefined,
      importedCount: 1,
      exportedCount: 2,
    },
    {
      name: 'podwire_bgp_2001:db8::2',
      state: 'Established',
      isEstablished: true,
      since: '2026-11-21 17:56:07',
      reason: undefined,
      importedCount: 3,
      exportedCount: 5,
    },
    {
      name: 'podwire_bgp_192.0.2.3',
      state: 'Active',
      isEstablished: false,
      since: '2026-11-21 17:56:13',
      reason: 'Socket: Connection refused',
      importedCount: 0,
      exportedCount: 0,
    },
    {
      name: 'podwire_bgp_192.0.2.9',
      state: 'Connect',
      isEstablished: false,
      since: '2026-11-21 17:56:05',
      reason: undefined,
      importedCount: 0,
      exportedCount: 0,
    },
  ]);
});

test('BIRD’s reply without sessions', () => {
  const [reply] = new ReplyReader().push('8003 No protocols match\n');
  expect(reply && readSessions(reply)).toEqual([]);
});
