import { expect, test } from 'vitest';

import { ReplyReader } from './control-reply.js';
import { readSessions } from './session-state.js';

/** `show protocols all` of BIRD 2.0.12, shortened: two peers that are there, one that refuses, one that was never there, others. */
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

test('no sessions, as BIRD says it', () => {
  const [reply] = new ReplyReader().push('8003 No protocols match\n');
  expect(reply && readSessions(reply)).toEqual([]);
});
